from .words import say


def up_to(*numbers):
    say(list(range(max(numbers))))
