"""`/v1/videos` with the official client: jobs that it polls, and the same video in one answer."""

from __future__ import annotations

import io
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from support.media_samples import bomb_png, clip, image_of, write_lossless
from support.omni_server import VIDEOS, OmniServer

from omni_cli.requests.contents import Video
from omni_cli.requests.encoding import encode_png
from omni_cli.requests.media.video import decode_video

MODEL = "tiny-video"
BRIEF = {"num_inference_steps": 1, "num_frames": 5, "seed": 1}
GONE = f"{VIDEOS}/video_{0:032x}"
SLOW = {"num_inference_steps": 1000, "num_frames": 17}
# The client warns at every method: OpenAI has shut its own service down.
pytestmark = pytest.mark.filterwarnings("ignore:The Sora API")


@pytest.fixture(scope="module")
def videos(video_server: OmniServer) -> Any:
    return video_server.client().videos


def frames_of(mp4: bytes) -> Video:
    return decode_video(io.BytesIO(mp4), "video")[0]


def wait_for(videos: Any, video_id: str) -> Any:
    deadline = time.monotonic() + 60
    while (video := videos.retrieve(video_id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return video


def test_a_job_from_its_beginning_to_its_end(video_server: OmniServer, videos: Any) -> None:
    created = videos.create(
        model=MODEL, prompt="a red cat", seconds="0.5", size="64x32", extra_body={"seed": 3, "num_inference_steps": 40}
    )
    assert (created.object, created.model, created.prompt) == ("video", MODEL, "a red cat")
    assert (created.status, created.seconds, created.size, created.completed_at) == ("queued", "0.5", "64x32", None)
    seen = set()
    while (video := videos.retrieve(created.id)).status != "completed":
        assert video.status in ("queued", "in_progress")
        seen.add(video.progress)
    assert len(seen) > 2 and max(seen) < 100, "the progress of the steps"
    assert video.progress == 100 and video.expires_at - video.completed_at == 24 * 3600
    # Half a second are eight frames; the nearest that Wan makes are nine.
    assert (video.seconds, video.size, video.error) == ("0.5625", "64x32", None)
    content = videos.download_content(video.id).read()
    made = frames_of(content)
    assert made.frames.shape == (9, 32, 64, 3) and made.fps == 16
    fields = {"seed": "3", "num_inference_steps": "40", "num_frames": "9"}
    sync = video_server.client().post(
        "/videos/sync",
        body={"prompt": "a red cat", "size": "64x32", **fields},
        files={},
        options={"headers": {"Content-Type": "multipart/form-data"}},
        cast_to=openai._legacy_response.HttpxBinaryResponseContent,
    )
    assert sync.read() == content, "the same seed, the same file"
    from PIL import Image

    thumbnail = Image.open(io.BytesIO(videos.download_content(video.id, variant="thumbnail").read()))
    assert (thumbnail.format, thumbnail.size) == ("WEBP", (64, 32))
    assert np.abs(np.asarray(thumbnail.convert("RGB")).astype(int) - made.frames[0]).mean() < 16
    sheet = Image.open(io.BytesIO(videos.download_content(video.id, variant="spritesheet").read()))
    assert sheet.format == "WEBP" and sheet.size > thumbnail.size
    assert videos.delete(video.id).deleted
    with pytest.raises(openai.NotFoundError, match="no video"):
        videos.retrieve(video.id)
    wrong = video_server.request("POST", GONE)
    assert wrong.status == 405 and wrong.headers["allow"] == "DELETE, GET"
    assert video_server.request("GET", f"{VIDEOS}/sync").headers["allow"] == "POST"


def test_pages_and_the_limit_of_videos_kept(video_server: OmniServer, videos: Any) -> None:
    ids = []
    for number in range(7):
        ids.append(videos.create(prompt=f"cat {number}", extra_body=BRIEF).id)
        assert wait_for(videos, ids[-1]).status == "completed"
    kept = ids[1:]
    assert [video.id for video in videos.list(limit=4)] == kept[::-1], "the client asks for one page after another"
    assert [video.id for video in videos.list(limit=100, order="asc")] == kept
    page = videos.list(limit=2, after=kept[3])
    assert [video.id for video in page.data] == [kept[2], kept[1]] and page.has_more
    assert video_server.metric("omni_video_jobs", status="completed") == 6
    assert video_server.metric("omni_video_store_bytes") > 6 * 500
    assert video_server.metric("omni_requests_total", path="/v1/videos/{video_id}") > 6
    for query, param in (("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=x", "after")):
        refused = video_server.request("GET", f"{VIDEOS}?{query}")
        assert refused.status == 400 and refused.error["param"] == param


def test_running_jobs_are_limited_and_end_when_they_are_deleted(video_server: OmniServer, videos: Any) -> None:
    running = [videos.create(prompt="a cat", extra_body=SLOW).id for _ in range(3)]
    with pytest.raises(openai.RateLimitError, match="3 videos are running or waiting"):
        videos.create(prompt="a cat", extra_body=BRIEF)
    video_server.wait_until(lambda: videos.retrieve(running[0]).status == "in_progress")
    with pytest.raises(openai.NotFoundError, match="the video is in_progress"):
        videos.download_content(running[0])
    for video_id in running:
        assert videos.delete(video_id).deleted
    video_id = videos.create(prompt="a cat", extra_body=BRIEF).id
    assert wait_for(videos, video_id).status == "completed", "the engine is free again"


def test_a_job_that_the_model_refuses(video_server: OmniServer, videos: Any) -> None:
    video = wait_for(videos, videos.create(prompt="a cat", size="63x64").id)
    assert (video.status, video.error.code) == ("failed", "invalid_request_error")
    assert "63" in video.error.message and video.completed_at is not None
    with pytest.raises(openai.NotFoundError, match=r"the video is failed: .*63"):
        videos.download_content(video.id)
    # It is written after the client can see the status.
    (line,) = video_server.wait_until(
        lambda: [line for line in video_server.log("video") if line["request_id"] == video.id]
    )
    assert (line["status"], line["error"]) == ("failed", "invalid_request_error")


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"prompt": ""}, "at least 1 character", "prompt"),
        ({"prompt": openai.omit}, "`prompt` is missing", "prompt"),
        ({"seconds": "0"}, "greater than 0", "seconds"),
        ({"seconds": "long"}, "valid number", "seconds"),
        ({"seconds": "1", "extra_body": {"num_frames": 9}}, "`seconds` and `num_frames` exclude", "seconds"),
        ({"size": "big"}, "WIDTHxHEIGHT", "size"),
        ({"input_reference": b"x"}, "takes no `input_reference`", "input_reference"),
        ({"extra_body": {"fps": "0"}}, "above 0", "fps"),
        ({"extra_body": {"num_frames": 0}}, "greater than or equal to 1", "num_frames"),
        ({"extra_body": {"n": 2}}, "unknown field `n`", "n"),
        ({"extra_body": {"strength": 0.5}}, "takes no `strength`", "strength"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_a_mistake(videos: Any, fields: dict[str, Any], message: str, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        videos.create(**{"prompt": "a cat", **fields})
    assert message in caught.value.message and caught.value.param == param


def test_a_failed_video_names_the_fields_of_its_request(videos: Any) -> None:
    made = wait_for(videos, videos.create(prompt="a cat", seconds="86400").id)
    assert made.error.message.startswith("`seconds` would be 1382401 frames; the maximum is ")


def test_each_profile_has_its_own_endpoint(video_server: OmniServer, image_server: OmniServer) -> None:
    for method, path in (("GET", VIDEOS), ("GET", GONE), ("DELETE", GONE)):
        refused = image_server.request(method, path)
        assert refused.status == 404 and "makes image, not video" in refused.error["message"]
    with pytest.raises(openai.NotFoundError, match=r"makes video, not image"):
        video_server.client().images.generate(model=MODEL, prompt="a cat")


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_finds_the_videos_again(number: signal.Signals, tmp_path: Path) -> None:
    arguments = ("--profile", MODEL, "--output-dir", str(tmp_path / "kept"), "--drain-timeout", "1")
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first = OmniServer(tmp_path / "first", *arguments)
    videos = first.client().videos
    made = wait_for(videos, videos.create(prompt="a cat", extra_body=BRIEF).id)
    content = videos.download_content(made.id).read()
    interrupted = videos.create(prompt="a dog", extra_body=SLOW).id
    first.wait_until(lambda: videos.retrieve(interrupted).status == "in_progress")
    first.stop(number)
    second = OmniServer(tmp_path / "second", *arguments)
    videos = second.client().videos
    assert videos.retrieve(made.id) == made and videos.download_content(made.id).read() == content
    failed = videos.retrieve(interrupted)
    assert (failed.status, failed.error.code) == ("failed", "server_stopped")
    assert second.stop().code == 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["WanImageToVideoPipeline", "WanVideoToVideoPipeline"])
def test_a_reference(name: str, start_server: Any, tmp_path: Path) -> None:
    """An image, or a video for a pipeline that changes one: it decides what is made, and cannot be left out."""
    from omni_cli.checkpoints.tiny_pipelines import video

    video(name).write(tmp_path / "checkpoint", seed=0)
    server = start_server(
        *("-p", MODEL, "--model", str(tmp_path / "checkpoint"), "--output-dir", str(tmp_path / "kept"))
    )
    videos = server.client().videos
    is_image = name == "WanImageToVideoPipeline"
    steps = BRIEF if is_image else {"num_inference_steps": 2}
    references = []
    for seed in (0, 1):
        references.append(encode_png(image_of(seed)) if is_image else write_lossless(clip(seed, num_frames=9)))

    def make(reference: Any) -> bytes:
        job = videos.create(prompt="a cat", input_reference=reference, extra_body=steps)
        video = wait_for(videos, job.id)
        assert video.status == "completed", video
        return videos.download_content(video.id).read()

    made = [make(reference) for reference in references]
    assert made[0] != made[1]
    if is_image:
        with pytest.raises(openai.BadRequestError, match="too many pixels"):
            videos.create(prompt="a cat", input_reference=bomb_png(20_000, 20_000))
        with pytest.raises(openai.BadRequestError, match="`input_reference` is missing, which this model needs"):
            videos.create(prompt="a cat")
    else:  # its signature has a default, which it does not take
        failed = wait_for(videos, videos.create(prompt="a cat").id)
        assert failed.status == "failed" and "an image, mask or video that it needs is missing" in failed.error.message
    with pytest.raises(openai.BadRequestError, match="cannot read the"):
        videos.create(prompt="a cat", input_reference=b"hello")
