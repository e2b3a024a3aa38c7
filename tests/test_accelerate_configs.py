from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType


CONFIGS = Path(__file__).parents[1] / "train_scripts" / "accelerate_configs"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ddp", DistributedType.MULTI_GPU),
        ("fsdp2", DistributedType.FSDP),
        ("zero2", DistributedType.DEEPSPEED),
        ("zero3", DistributedType.DEEPSPEED),
    ],
)
def test_accelerate_reads_the_configuration(name, kind):
    config = load_config_from_file(str(CONFIGS / f"{name}.yaml"))  # refuses keys that it does not know
    assert DistributedType(config.distributed_type) == kind


def test_stages_are_those_of_the_names():
    stages = {name: yaml.safe_load((CONFIGS / f"{name}.yaml").read_text()) for name in ("zero2", "zero3", "fsdp2")}
    assert stages["zero2"]["deepspeed_config"]["zero_stage"] == 2
    assert stages["zero3"]["deepspeed_config"]["zero_stage"] == 3
    assert stages["fsdp2"]["fsdp_config"]["fsdp_version"] == 2
