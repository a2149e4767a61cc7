plain = {"doubled": {}}
less = plain | {"said": {}}
more = less | {"counted": {}}
SERIES = {"plain": plain, "less": less, "more": more}
DEFAULT = "more"
