# The image-job service, as compose.yaml runs it: docker compose up --build
FROM python:3.13-slim

# The libraries first: they change seldom. Each file of theirs is one that requirements.txt has the hash of.
WORKDIR /retake
COPY requirements.txt ./
RUN pip install --no-cache-dir --require-hashes --requirement requirements.txt

COPY config config
COPY retake retake
RUN useradd --system --no-create-home retake && install --directory --owner=retake --group=retake /data
USER retake

ENV PYTHONUNBUFFERED=1
ENTRYPOINT ["python", "-m"]
CMD ["retake", "images", "--help"]
