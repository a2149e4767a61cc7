"""Ring 3 for what `standard` does about models, data and loaders: real processes on real JPEG
files.
"""

import json
import shutil
import textwrap

import pytest
from test_runs import SMALL, of, parsed, plain_accuracy

torch = pytest.importorskip("torch")
from PIL import Image  # noqa: E402


@pytest.fixture
def driver(tmp_path):
    """A function that writes a script which runs another as a main program, after `code` has
    prepared the process.
    """

    def driver(code):
        path = tmp_path / "driver.py"
        start = "import json, os, runpy, sys, warnings\nimport torch\nsys.argv = sys.argv[1:]\n"
        end = "sys.path[0] = os.path.dirname(sys.argv[0])\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
        path.write_text(f"{start}{textwrap.dedent(code)}\n{end}")
        return path

    return driver


def ours(text):
    """The lines of the streams that the scripts themselves wrote."""
    return [
        line
        for line in text.splitlines()
        if line.startswith(("distributed.py: ", "dataparallel.py: "))
    ]


def test_two_ranks_start_from_weights_that_one_of_them_fetched(
    build_of, run, data, driver, tmp_path
):
    script = driver(
        """
        import torch.hub
        def fetched(url, path, *args, **kwargs):
            with open(os.environ["FETCHED"], "a") as file:
                print(os.environ["RANK"], file=file)
            import torchvision
            torch.manual_seed(7)
            torch.save(torchvision.models.shufflenet_v2_x0_5().state_dict(), path)
        torch.hub.download_url_to_file = fetched
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*pin_memory.*")  # there is no CUDA here
        """
    )
    env = {"FETCHED": tmp_path / "fetched", "TORCH_HOME": tmp_path / "torch"}
    options = [
        "--arch",
        "shufflenet_v2_x0_5",
        "--lr",
        "0",
        "--wd",
        "0",
        "-b",
        "20",
        "--epochs",
        "1",
        "--pretrained",
    ]
    command = [script, build_of() / "distributed.py", "--data", data, *options]
    result = run(*command, ranks=2, gpus=2, **env)
    assert result.status == 0, result.err
    assert (tmp_path / "fetched").read_text() == "0\n"

    # A learning rate of 0 keeps the weights as they were.
    state = torch.load(result.folder / "checkpoint.pth.tar", weights_only=True)["state_dict"]
    import torchvision

    torch.manual_seed(7)
    weights = dict(torchvision.models.shufflenet_v2_x0_5().named_parameters())
    assert state["fc.weight"].shape == (10, 1024)
    assert all(
        torch.equal(state[name], weights[name]) for name in set(weights) - {"fc.weight", "fc.bias"}
    )
    assert "shufflenet_v2_x0_5: torchvision weights" in parsed(result.outs[0])["other"]
    top1, top5 = plain_accuracy(result.folder / "checkpoint.pth.tar", data)
    for out in result.outs:  # rank 1 had the same weights
        for acc1, acc5 in parsed(out)["result"]:
            assert [float(acc1), float(acc5)] == [
                pytest.approx(top1, abs=1e-3),
                pytest.approx(top5, abs=1e-3),
            ]


@pytest.mark.parametrize(
    "name", ["distributed.py", pytest.param("dataparallel.py", marks=pytest.mark.thorough)]
)
def test_no_python_warning_arises_anywhere(name, build_of, command, data, driver):
    # As in the run above, but nothing is ignored, the CPU is what it is, and the warning of --seed
    # is a line.
    fetching = driver(
        """
        import torch.hub
        def fetched(url, *args, **kwargs):
            import torchvision
            return torchvision.models.shufflenet_v2_x0_5().state_dict()
        torch.hub.load_state_dict_from_url = fetched
        """
    )
    options = ["--data", data, *SMALL, "-b", "10", "--epochs", "1", "-j", "1", "--overwrite"]
    plain = [build_of() / name, *options]
    for argv in ([*plain, "--seed", "3"], [fetching, *plain, "--pretrained"]):
        result = command("-W", "error", *argv, gpus=None)
        assert result.status == 0, result.err
        assert len(parsed(result.outs[0])["result"]) == 1
        said = (
            "--seed asks cuDNN for deterministic kernels only, and these can be a good deal slower."
        )
        assert result.err == (f"{name}: warning: {said}\n" if "--seed" in argv else "")


def test_model_that_cannot_be_trained_is_one_line_and_no_process_group(build_of, run, data):
    command = [
        build_of() / "distributed.py",
        "--data",
        data,
        "--arch",
        "inception_v3",
        "-b",
        "4",
        "--epochs",
        "1",
    ]
    result = run(*command, ranks=2, gpus=2)
    assert result.status != 0
    (line,) = ours(result.err)
    assert line.startswith(
        "distributed.py: error: --arch inception_v3: it does not take images of 224 x 224 ("
    )
    assert 2 in result.statuses and 'distributed.py", line' not in result.err
    assert of(result, "init_process_group") == [] and list(result.folder.iterdir()) == []


@pytest.mark.parametrize("name", ["distributed.py", "dataparallel.py"])
def test_images_of_two_of_three_classes_are_judged_by_the_numbers_of_training(
    name, build_of, run, driver, tmp_path
):
    colours = {"blue": (0, 0, 250), "green": (0, 250, 0), "red": (250, 0, 0)}
    for part, classes in (("train", ["blue", "green", "red"]), ("val", ["blue", "red"])):
        for colour in classes:
            for copy in range(4):
                path = tmp_path / "colours" / part / colour / f"{copy}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                wrong = (
                    part == "val" and colour == "red" and copy == 0
                )  # one image of eight is in the wrong folder
                Image.new("RGB", (16, 16), colours["green" if wrong else colour]).save(path)
    script = driver(
        """
        import torchvision
        class Colour(torch.nn.Module):
            # Knows the classes by what is in the image, and numbers them as the folders of train/ are.
            def __init__(self, num_classes):
                super().__init__()
                assert num_classes == 3
                self.scale = torch.nn.Parameter(torch.ones(1))
            def forward(self, images):
                return images.mean((2, 3)).flip(1) * self.scale
        torchvision.models.get_model = lambda arch, num_classes: Colour(num_classes)
        """
    )
    ranks = 1 if name == "distributed.py" else None
    command = [script, build_of() / name, "--data", tmp_path / "colours", "-b", "8", "-e"]
    weights = {
        "epoch": 1,
        "arch": "resnet18",
        "state_dict": {"scale": torch.ones(1)},
        "best_acc1": 0.0,
    }
    torch.save(weights, tmp_path / "weights.pth.tar")
    command += ["--resume", tmp_path / "weights.pth.tar"]
    result = run(*command, ranks=ranks, gpus=1)
    assert result.status == 0, result.err
    # Top-5 of three classes holds every class.
    assert parsed(result.outs[0])["result"] == [("87.500", "100.000")]
    assert result.err.count("no images of 1 of the 3 classes in train/: green") == 1


SPY = """
import torchvision
log = open(os.environ["SEEN"] + os.environ.get("RANK", "0"), "a", buffering=1)
def note(**what):
    print(json.dumps(what), file=log, flush=True)

draw = torchvision.transforms.RandomResizedCrop.get_params
def drawn(*args):
    crop = draw(*args)
    note(crop=crop)
    return crop
torchvision.transforms.RandomResizedCrop.get_params = staticmethod(drawn)

from torch.utils.data.distributed import DistributedSampler
iterate = DistributedSampler.__iter__
def iterated(self):
    order = list(iterate(self))
    note(order=order)
    return iter(order)
DistributedSampler.__iter__ = iterated

from torch.nn.parallel import DistributedDataParallel
prepare = DistributedDataParallel.__init__
def prepared(self, module, *args, **kwargs):
    prepare(self, module, *args, **kwargs)
    note(weights=sum(p.double().abs().sum().item() for p in module.parameters()))
DistributedDataParallel.__init__ = prepared
"""


def test_run_with_a_seed_repeats_bit_for_bit_and_ranks_draw_their_own_crops(
    build_of, run, data, driver, tmp_path
):
    script, states, seen = driver(SPY), [], []
    for number in range(2):
        seen_by = tmp_path / f"seen{number}-"
        options = [*SMALL, "-b", "20", "--epochs", "1", "-j", "1", "--seed", "3", "--overwrite"]
        command = [script, build_of() / "distributed.py", "--data", data, *options]
        result = run(*command, ranks=2, gpus=2, SEEN=seen_by)
        assert result.status == 0, result.err
        states.append(
            torch.load(result.folder / "checkpoint.pth.tar", weights_only=True)["state_dict"]
        )
        ranks = []
        for rank in range(2):
            lines = [
                json.loads(line)
                for line in (tmp_path / f"seen{number}-{rank}").read_text().splitlines()
            ]
            ranks.append(
                {
                    kind: [line[kind] for line in lines if kind in line]
                    for kind in ("crop", "order", "weights")
                }
            )
        seen.append(ranks)

    first, again = states
    assert all(torch.equal(first[name], again[name]) for name in first)  # bit for bit
    assert seen[0] == seen[1]

    one, two = seen[0]
    assert len(one["crop"]) == len(two["crop"]) == 10
    assert not {*map(tuple, one["crop"])} & {*map(tuple, two["crop"])}
    assert one["weights"] == two["weights"]
    # Upstream shuffles by the seed 0 whatever was asked for.
    order, wrong = (
        torch.randperm(20, generator=torch.Generator().manual_seed(seed)).tolist()
        for seed in (3, 0)
    )
    assert (
        [one["order"][0], two["order"][0]]
        == [order[0::2], order[1::2]]
        != [wrong[0::2], wrong[1::2]]
    )


@pytest.fixture
def spoilt(data, tmp_path):
    """A function that copies the data set and cuts some of its files short; gives the copy and
    these files.
    """

    def spoilt(part, count):
        copy = tmp_path / "spoilt"
        shutil.copytree(data, copy)
        files = sorted((copy / part).rglob("*.jpg"))[: 2 * count : 2]
        for path in files:
            path.write_bytes(path.read_bytes()[:300])
        return copy, files

    return spoilt


def test_bad_image_is_named_from_a_worker(build_of, run, spoilt):
    folder, (path,) = spoilt("train", 1)
    command = [
        build_of() / "dataparallel.py",
        "--data",
        folder,
        *SMALL,
        "-b",
        "20",
        "--epochs",
        "1",
        "-j",
        "2",
    ]
    result = run(*command, gpus=1)
    assert result.status == 1
    assert f"RuntimeError: cannot decode {path}: OSError: " in result.err
    assert "in DataLoader worker process" in result.err
    assert list(result.folder.iterdir()) == []


def test_validation_skips_no_image(build_of, run, spoilt, weights):
    folder, (path,) = spoilt("val", 1)
    command = [
        build_of() / "dataparallel.py",
        "--data",
        folder,
        *SMALL,
        "-b",
        "20",
        "-e",
        "--skip-bad-images",
        "9",
    ]
    result = run(*command, "--arch", "tiny", "--resume", weights, gpus=1)
    assert result.status == 1
    assert f"RuntimeError: cannot decode {path}: OSError: " in result.err


@pytest.mark.parametrize("allowed", [3, 2])
def test_ranks_count_the_bad_images_of_the_job_together(allowed, build_of, run, spoilt):
    folder, paths = spoilt("train", 3)
    options = [*SMALL, "-b", "4", "--epochs", "1", "-j", "1", "--skip-bad-images", str(allowed)]
    command = [build_of() / "distributed.py", "--data", folder, *options]
    result = run(*command, ranks=2, gpus=2)
    listed = [
        line.partition("\t")[0]
        for line in (result.folder / "skipped_images.txt").read_text().splitlines()
    ]
    assert sorted(listed) == [str(path) for path in paths]
    assert [line.partition(": ")[2].startswith("skipped ") for line in ours(result.err)] == [
        True
    ] * allowed
    if allowed == 3:
        assert result.status == 0, result.err
        assert len(parsed(result.outs[0])["train"]) == 5
        assert (result.folder / "checkpoint.pth.tar").exists()
    else:
        assert result.status != 0
        assert (
            f"more than 2 images cannot be decoded; the last is {listed[-1]}: OSError" in result.err
        )
