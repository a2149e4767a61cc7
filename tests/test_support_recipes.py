"""`support.recipes`: what is published, what the command line has, and what is written down."""

import argparse
import json
import shlex
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from conftest import ending  # noqa: E402
from tiny_run import net, new_process, run_of, settings  # noqa: E402

from patches.support import output_folder, recipes, run, saved  # noqa: E402

IMAGES = 1281167  # in ImageNet's train/


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    new_process(tmp_path, monkeypatch)


# As torchvision has published them: 8 processes; what is not said is what its train.py takes then.
VIT = """--model vit_b_16 --epochs 300 --batch-size 512 --opt adamw --lr 0.003 --wd 0.3
    --lr-scheduler cosineannealinglr --lr-warmup-method linear --lr-warmup-epochs 30
    --lr-warmup-decay 0.033 --amp --label-smoothing 0.11 --mixup-alpha 0.2 --auto-augment ra
    --clip-grad-norm 1 --ra-sampler --cutmix-alpha 1.0 --model-ema"""
RESNET = """--model resnet50 --batch-size 128 --lr 0.5 --lr-scheduler cosineannealinglr
    --lr-warmup-epochs 5 --lr-warmup-method linear --auto-augment ta_wide --epochs 600
    --random-erase 0.1 --weight-decay 0.00002 --norm-weight-decay 0.0 --label-smoothing 0.1
    --mixup-alpha 0.2 --cutmix-alpha 1.0 --train-crop-size 176 --model-ema --val-resize-size 232
    --ra-sampler --ra-reps 4"""
UNSAID = {"ra_reps": "3", "lr_warmup_decay": "0.01", "opt": "sgd", "momentum": "0.9"}
# Its numbers, by the name that they have there and here.
NUMBERS = "epochs lr weight_decay label_smoothing random_erase:random_erase mixup_alpha:mixup "
NUMBERS += "cutmix_alpha:cutmix clip_grad_norm:clip_grad lr_warmup_epochs:warmup ra_reps:repeats "
NUMBERS += "lr_warmup_decay:warmup_start train_crop_size:image_size val_resize_size:val_resize"
SCHEDULES = {"cosineannealinglr": "cosine"}
AUGMENT = {"ra": "ra", "ta_wide": "ta"}
# What their commands do not say: what decays, their model-ema's length, two defaults.
OWN = {"decay", "ema", "momentum", "val_crop"}


@pytest.mark.parametrize("name, command", [("vit", VIT), ("resnet", RESNET)])
def test_a_recipe_of_torchvision_has_its_published_figures(name, command):
    flags = {}
    for word in shlex.split(command):
        if word.startswith("--"):
            last = word[2:].replace("-", "_").replace("wd", "weight_decay")
        flags[last] = word
    theirs = UNSAID | flags
    batch, ours = recipes.RECIPES[name]
    assert batch == 8 * int(theirs["batch_size"])
    expected = {"opt": theirs["opt"], "schedule": SCHEDULES[theirs["lr_scheduler"]]}
    expected["augment"] = AUGMENT[theirs["auto_augment"]]
    for pair in NUMBERS.split():
        there, _, here = pair.partition(":")
        if there in theirs:
            expected[here or there] = float(theirs[there])
    assert {name: value for name, value in ours.items() if name not in OWN} == expected
    assert ours.get("momentum", 0.9) == 0.9 and ours.get("val_crop", 224) == 224


@pytest.mark.parametrize("name", ["vit", "resnet"])
def test_the_average_is_as_long_as_torchvisions(name):
    """Its train.py: every 32 steps, (1 - 0.99998) * images a step * 32 / epochs of the new one."""
    batch, values = recipes.RECIPES[name]
    theirs = (1 - 0.99998) * batch * 32 / values["epochs"]
    ours = 32 / (values["ema"] * IMAGES / batch)
    assert ours == pytest.approx(theirs, rel=0.002)


def test_the_papers_recipe_has_the_figures_of_its_table_3():
    batch, values = recipes.RECIPES["vit-paper"]
    assert batch == 4096 and values["opt"] == "adamw" and values["schedule"] == "cosine"
    numbers = "epochs lr weight_decay dropout warmup_steps clip_grad betas"
    expected = [300, 0.003, 0.3, 0.1, 10000, 1, (0.9, 0.999)]
    assert [values[name] for name in numbers.split()] == expected
    assert not {"mixup", "cutmix", "augment", "label_smoothing", "ema", "repeats"} & set(values)


def test_every_value_of_a_recipe_is_saved_with_a_checkpoint():
    names = {name for _, values in recipes.RECIPES.values() for name in values}
    assert names | {"recipe"} <= set(run.SETTINGS)
    args = settings(recipe="vit", mixup=0.2)
    Path("d/train/a").mkdir(parents=True)
    kept = run_of(net(), args=args).state()["args"]
    assert (kept["recipe"], kept["mixup"]) == ("vit", 0.2) and "cutmix" not in kept


# What the command line has


def parser():
    """A parser with an option for each value of all recipes, and the default -1."""
    made = argparse.ArgumentParser()
    made.add_argument("-b", "--batch-size", type=int, default=3200)
    made.add_argument("--evaluate", action="store_true")
    known = {
        name: value for _, values in recipes.RECIPES.values() for name, value in values.items()
    }
    for name, value in known.items():
        several = {"nargs": 2, "type": float} if isinstance(value, tuple) else {"type": type(value)}
        made.add_argument(f"--{name.replace('_', '-')}", default=-1, **several)
    recipes.add_options(made)
    return made


def applied(monkeypatch, *argv):
    monkeypatch.setattr("sys.argv", ["train.py", *argv])
    made = parser()
    args = made.parse_args()
    recipes.apply(made, args)
    return args


def test_without_a_recipe_nothing_changes(monkeypatch, capsys):
    args = applied(monkeypatch, "--epochs", "5")
    assert {**vars(args), "epochs": -1} == vars(parser().parse_args([]))
    assert capsys.readouterr().out == ""


def test_the_recipe_in_force_is_one_line(monkeypatch, capsys):
    args = applied(monkeypatch, "--recipe", "vit-paper", "-b", "768", "--dropout=0", "--epo", "400")
    assert capsys.readouterr().out == (
        "recipe vit-paper: opt=adamw betas=0.9,0.999 lr=0.0005625 (0.003 for 4096 images a step, "
        "here 768) weight_decay=0.3 decay=weights schedule=cosine warmup_steps=10000 "
        "warmup_start=0 clip_grad=1; by the command line: epochs=400 instead of epochs=300, "
        "dropout=0 instead of dropout=0.1\n"
    )
    assert (args.epochs, args.dropout) == (400, 0) and args.lr == pytest.approx(0.0005625)
    assert args.mixup == -1  # what is not in the recipe stays as it was


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_each_value_gives_way_to_its_own_option_even_if_that_is_the_default(name, monkeypatch):
    for option, value in recipes.RECIPES[name].values.items():
        text = {str: "other", tuple: "-1"}.get(type(value), "-1")
        words = [f"--{option.replace('_', '-')}", *[text] * (2 if isinstance(value, tuple) else 1)]
        args = applied(monkeypatch, "--recipe", name, "-b", "1024", *words)
        batch, values = recipes.RECIPES[name]
        values = {**values, "lr": values["lr"] * (1024 / batch)}
        others = set(values) - {option, recipes.INSTEAD.get(option)}
        assert {one: getattr(args, one) for one in others} == {one: values[one] for one in others}
        given = getattr(args, option)
        assert given in (type(value)(text) if not isinstance(value, tuple) else [-1.0, -1.0], text)


@pytest.mark.parametrize(
    "recipe, given, other",
    [("vit", "warmup_steps", "warmup"), ("vit-paper", "warmup", "warmup_steps")],
)
def test_the_warm_up_in_steps_takes_the_place_of_that_in_epochs(
    recipe, given, other, monkeypatch, capsys
):
    args = applied(monkeypatch, "--recipe", recipe, f"--{given.replace('_', '-')}", "7")
    assert (getattr(args, given), getattr(args, other)) == (7, -1)
    value = recipes.RECIPES[recipe].values[other]
    assert f": {given}=7 instead of {other}={value:g}\n" in capsys.readouterr().out


@pytest.mark.parametrize("world, local, images", [(1, 1, 256), (8, 8, 256), (16, 8, 512)])
def test_the_rate_is_for_the_images_of_all_hosts_together(world, local, images, monkeypatch):
    """--batch-size is that of a node."""
    monkeypatch.setenv("WORLD_SIZE", str(world))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local))
    args = applied(monkeypatch, "--recipe", "resnet", "--batch-size", "256")
    assert args.lr == 0.5 * (images / 1024)
    assert args.batch_size == 256


def test_the_other_ranks_do_the_same_and_say_nothing(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    assert applied(monkeypatch, "--recipe", "resnet", "-b", "1024").lr == 0.5
    assert capsys.readouterr().out == ""


def test_a_script_without_one_of_the_options_ends_in_one_line(monkeypatch, capsys):
    made = parser()
    args = made.parse_args(["--recipe", "vit"])
    del args.mixup, args.warmup_start
    line = ending(capsys, recipes.apply, made, args)
    assert line.endswith(": --recipe vit: this script has no --warmup-start, --mixup")


# args.json


def test_all_arguments_are_in_args_json(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    args = applied(monkeypatch, "--recipe", "vit", "-b", "64")
    args.batch_size //= 2  # as the script does it, for one process
    args.builder = {"image_size": 224}  # as `network` has it
    recipes.save(args)
    del args.builder
    found = json.loads(Path("args.json").read_text())
    assert found == {**vars(args), "batch_size": 64}
    assert (found["recipe"], found["lr"]) == ("vit", 0.003 * (128 / 4096))
    assert [path.name for path in Path().iterdir()] == ["args.json"]


@pytest.mark.parametrize("evaluate, rank", [(True, "0"), (False, "1")])
def test_a_job_that_only_evaluates_and_other_ranks_write_no_arguments(evaluate, rank, monkeypatch):
    monkeypatch.setenv("RANK", rank)
    recipes.save(settings(evaluate=evaluate))
    assert not Path("args.json").exists()


def test_the_arguments_of_another_run_are_moved_away_with_its_files():
    Path("args.json").write_text("{}")
    output_folder.begin(None, {})
    (moved,) = Path().glob("overwritten-*/args.json")
    assert moved.read_text() == "{}" and not Path("args.json").exists()


# What a resumed run says of it


def test_changed_settings_of_a_recipe_are_told_and_a_script_without_them_is_fine():
    state = {"best_acc1": 1.0, "optimizer": {}, "epoch": 1}
    state["args"] = {
        "batch_size": 4,
        "lr": 0.1,
        "mixup": 0.2,
        "recipe": "vit",
        "betas": (0.9, 0.99),
    }
    same = settings(mixup=0.2, recipe="vit", betas=[0.9, 0.99])
    assert saved.changes(state, same) == []
    other = settings(mixup=0.0, recipe=None, betas=[0.9, 0.9])
    assert sorted(saved.changes(state, other)) == [
        "betas was [0.9, 0.99], is [0.9, 0.9]",
        "mixup was 0.2, is 0.0",
        "recipe was vit, is None",
    ]
    assert saved.changes(state, settings()) == []
    state["args"] |= {"warmup_steps": 9, "warmup": 4.5}  # settled, which comes later
    assert saved.changes(state, settings(warmup_steps=9, warmup=0.0)) == []
