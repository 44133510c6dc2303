"""Pipelines of diffusers, real ones: what is encoded, each denoising step, what is decoded."""

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import hfmem_widget
from hfmem_widget.drivers import diffusion
from hfmem_widget.drivers import install as attaching
from hfmem_widget.monitor import grouping
from hfmem_widget.session import Session
from tests.trainer.tiny import outline

diffusers: Any = pytest.importorskip("diffusers", reason="diffusers is not installed")

from tests.data import diffusers_tiny as tiny  # noqa: E402  (it is of use with diffusers alone)

pytestmark = pytest.mark.filterwarnings("ignore")


PICTURE = "diffusion\n  encode\n  denoise\n    step 1\n    step 2\n    step 3\n  decode"


def counted_steps(session: Session) -> float:
    """Return the number of denoising steps as the span of all of them has it."""
    return next(span for span in session.spans if span.label == "denoise").counts["steps"]


def pictured(pipeline: Any, **options: Any) -> Session:
    with hfmem_widget.watch(quiet=True) as session:
        tiny.prompted(pipeline, **options)
    return session


@pytest.mark.parametrize("name", tiny.PICTURES)
def test_a_picture_has_its_phases_and_steps(name: str) -> None:
    """Phases and steps need nothing from the user, and the pixels are those of an unwatched pipeline."""
    bare = tiny.PICTURES[name]()
    with hfmem_widget.watch(quiet=True) as session:
        watched = tiny.PICTURES[name]()

    assert np.array_equal(bare, watched)
    assert outline(session) == PICTURE
    assert [group.first for group in session.steps] == [1, 2, 3]
    assert counted_steps(session) == 3


def test_the_models_of_a_pipeline_are_counted() -> None:
    """Text encoder, UNet and VAE are weights; what a picture takes besides is temporary."""
    pipeline = tiny.stable_diffusion()
    models: Any = (pipeline.unet, pipeline.vae, pipeline.text_encoder)
    size = sum(one.nbytes for model in models for one in model.parameters())

    assert pictured(pipeline).peak("cpu/weights") == pytest.approx(size, rel=0.01)


def test_a_step_may_call_its_models_more_than_once() -> None:
    """A step ends where the scheduler has made it: Heun's method makes five of three."""
    pipeline = tiny.stable_diffusion()
    pipeline.scheduler = diffusers.HeunDiscreteScheduler()

    assert pictured(pipeline).steps.count == 5


class Steered(diffusers.StableDiffusionPipeline):  # type: ignore[misc]  # diffusers is not checked here
    """A user's own pipeline around another."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


def own() -> Any:
    return Steered(**tiny.stable_diffusion().components, requires_safety_checker=False)


def tiled() -> Any:
    """Return a pipeline whose decoder goes through many tiles."""
    pipeline = tiny.stable_diffusion()
    pipeline.vae.enable_tiling()
    pipeline.vae.tile_latent_min_size = 4
    return pipeline


NOT_DECODED = PICTURE.removesuffix("\n  decode")


@pytest.mark.parametrize(
    ("make", "call", "options", "text"),
    [
        (tiny.from_noise, tiny.picture, {}, NOT_DECODED),
        (tiny.stable_diffusion, tiny.prompted, {"output_type": "latent"}, NOT_DECODED),
        (own, tiny.prompted, {}, PICTURE),
        (tiled, tiny.prompted, {}, PICTURE),
    ],
    ids=["pixels", "latents", "one's own", "in tiles"],
)
def test_each_picture_is_one_call(make: Any, call: Any, options: dict[str, Any], text: str) -> None:
    """Each picture has steps of its own, numbered from one, however it is made."""
    pipeline = make()
    with hfmem_widget.watch(quiet=True) as session:
        call(pipeline, **options)
        call(pipeline, **options)

    assert outline(session) == f"{text}\n{text}"
    assert session.steps.count == 6


def test_a_picture_that_fails_ends_its_phases() -> None:
    """The step and all spans around it have the error, no hook is left, and the next one is followed."""
    pipeline = tiny.stable_diffusion()
    with hfmem_widget.watch(quiet=True) as session:
        with pytest.raises(RuntimeError, match="the user's own"):
            tiny.prompted(
                pipeline, callback_on_step_end=Mock(side_effect=RuntimeError("the user's own"))
            )
        hooks = len(pipeline.unet._forward_pre_hooks)
        tiny.prompted(pipeline)

    first = [span for span in session.spans if span.label in {"diffusion", "denoise"}][:2]
    assert {span.outcome for span in first} == {"raised RuntimeError"}
    assert outline(session).endswith(PICTURE)
    assert hooks == 0


def test_the_steps_of_a_picture_within_a_training_are_not_steps_of_the_training() -> None:
    """A picture within a training has phases and counts its own steps."""
    pipeline = tiny.stable_diffusion()
    model = torch.nn.Linear(4, 4)
    with hfmem_widget.watch(quiet=True) as session:
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        tiny.prompted(pipeline)

    assert session.steps.count == 2
    assert counted_steps(session) == 3


def test_very_short_steps_are_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """All short steps are counted in one span, and the decoding after them is not among them."""
    monkeypatch.setattr(grouping, "ALLOWANCE", -1.0)
    monkeypatch.setattr(diffusion, "MOST_GROUP", 1e9)
    session = pictured(tiny.stable_diffusion())

    assert session.steps.count == 3
    assert [(group.first, group.last) for group in session.steps] == [(1, 3)]
    assert outline(session).endswith("  denoise\n    steps 1 to 3\n  decode")


@pytest.mark.parametrize("in_place", [False, True])
def test_the_steps_of_a_compiled_model_are_counted(*, in_place: bool) -> None:
    """Around torch.compile each has a span of its own; compiled in place, none has."""
    pipeline = tiny.stable_diffusion()
    if in_place:
        pipeline.unet.compile(backend="eager")
    else:
        pipeline.unet = torch.compile(pipeline.unet, backend="eager")
    session = pictured(pipeline)

    assert session.steps.count == (0 if in_place else 3)
    assert counted_steps(session) == 3


def test_pipelines_have_their_own_methods_after_the_last_watch() -> None:
    """Nothing of ours stays on the classes of pipelines."""
    pipeline = tiny.stable_diffusion()
    pictured(pipeline)
    attaching.detach()
    try:
        kinds = (type(pipeline).__call__, type(pipeline.scheduler).step, type(pipeline.vae).decode)
        homes = {kind.__code__.co_filename for kind in kinds}
        assert not [home for home in homes if "hfmem_widget" in home]
    finally:
        attaching.attach()
