"""A process that decodes images, sounds and documents, or videos, one after the other, until its
stdin ends.

    python -m specllama.engine.helpers.decode.decode_main BYTES PROCESSOR SECONDS [videos]
    (started by engine.helpers.decode.decoder)

The bytes come from requests, and decoders are large C programs. In this process they may crash,
loop or allocate any amount of memory without harm to the server. BYTES limits the address space,
PROCESSOR the CPU time of one job in seconds, if the platform supports that. The process can't open
files or sockets. The server ends a process that takes more than SECONDS for a job. If the server no
longer exists, an alarm ends it.

Videos have a process of their own: they take longer, and their libraries are large and optional.
"""

import sys

import specllama.engine.wire.startup as startup  # the very first
from specllama.engine import system
from specllama.engine.helpers.decode import documents, images
from specllama.engine.helpers.decode.decode_jobs import (
    PART,
    Decode,
    Decoded,
    DecodedPart,
    DecodeJob,
    DecodeRefused,
    DecodingStarted,
    Draw,
    Read,
    Sample,
    job_decoder,
)
from specllama.engine.helpers.decode.sounds import decode_sound
from specllama.engine.wire.framing import Started, frame
from specllama.engine.wire.link import Link, do_jobs, take_over


def answer(job: DecodeJob) -> Decoded | DecodeRefused:
    """Returns the content of a file, or why it can't be decoded."""
    try:
        match job:
            case Read():
                return documents.read_pages(job.data, job.max_pages, job.max_characters)
            case Draw():
                return documents.draw_page(job.data, job.page)
            case Sample():
                from specllama.engine.helpers.decode import video  # its library is optional

                return video.sample_video(job)
        match job.format:
            case "WAV" | "MP3" | "FLAC":
                return decode_sound(job.data, job.format, job.sample_rate, job.max_seconds)
            case "JPEG" | "PNG" | "GIF" | "BMP" | "WEBP":
                return images.decode_image(job.data, job.format, job.max_pixels)
            case _:
                return DecodeRefused("it is a video")
    except MemoryError:
        return DecodeRefused("it needs too much memory", exhausted=True)
    except Exception:  # the libraries raise any exception for damaged files
        format = job.format if isinstance(job, Decode | Sample) else "PDF"
        return DecodeRefused(f"it is a damaged or incomplete {format} file")


def main() -> None:
    memory, processor, seconds = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])

    link: Link[DecodeJob, Started] = take_over(job_decoder)

    def reply(job: DecodeJob) -> bytes:
        startup.limit_processor(processor)
        found = answer(job)
        if isinstance(found, DecodeRefused):
            return frame(found)
        begun = DecodingStarted(
            len(found.data), found.width, found.height, found.fps, found.is_reduced
        )
        link.write(frame(begun))
        for at in range(0, len(found.data), PART):
            link.write(frame(DecodedPart(found.data[at : at + PART])))
        return b""

    if sys.argv[4:] == ["videos"]:
        from specllama.engine.helpers.decode import video

        video.warm_up()
    else:
        images.warm_up()
        documents.warm_up()
    startup.resume_gc()
    startup.limit_descriptors()
    do_jobs(link, reply, memory=memory, seconds=seconds)


if __name__ == "__main__":
    main()
    system.leave()
