# The two commands of the README in a clean Debian 12:
#   docker build -t tessera . && docker run --rm tessera make demo
FROM debian:12
RUN apt-get update && apt-get install -y --no-install-recommends git make ca-certificates && rm -rf /var/lib/apt/lists/*
WORKDIR /tessera
COPY . .
RUN make setup && make build
CMD ["make", "test"]
