# The program in an image of its own: `docker build -t chancery .`, or by docker-compose.yml. Wants BuildKit.
#
#   docker run -p 127.0.0.1:7440:7440 -v chancery:/data chancery
#
# A release pins both base images by digest: `--build-arg RUST_IMAGE=rust:1.95.0-trixie@sha256:…`, and RUNTIME_IMAGE.
# `docker buildx imagetools inspect NAME` prints the digest.
#
# The toolchain is that of rust-toolchain.toml (a test compares them). That file stays outside: it would also fetch
# tools that only people need.
ARG RUST_IMAGE=rust:1.95.0-trixie
ARG RUNTIME_IMAGE=debian:trixie-slim
FROM ${RUST_IMAGE} AS build

WORKDIR /src
COPY . .
# librdkafka and OpenSSL are built from their sources with gcc, make and perl, which are in this image; zlib and zstd come
# with librdkafka. Names of functions stay for backtraces, lines do not.
ENV CARGO_PROFILE_RELEASE_STRIP=debuginfo
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked -p chancery --features kafka-tls && \
    cp target/release/chancery /usr/local/bin/chancery

# The same Debian: its C library is not older than the one that was linked. It has a shell, for processes that an executor
# starts.
FROM ${RUNTIME_IMAGE}

# The authorities that may have signed certificates of brokers.
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*

RUN groupadd --gid 10001 chancery && \
    useradd --uid 10001 --gid chancery --home-dir /data --no-create-home --shell /usr/sbin/nologin chancery && \
    install --directory --owner=chancery --group=chancery /data
COPY --from=build /usr/local/bin/chancery /usr/local/bin/chancery

# By number, so that an operator can see that it is not root.
USER 10001:10001
ENV CHANCERY_DATA_DIR=/data
# A published port leads to an address of the container that is not its loopback. So everything in the networks of the
# container reaches the server, and can do everything: publish the port on 127.0.0.1, and give the container a network of
# its own. Web pages are refused as on every server (docs/decisions/0056).
ENV CHANCERY_LISTEN=0.0.0.0:7440
ENV CHANCERY_ALLOW_UNSAFE_LISTEN=yes
EXPOSE 7440
WORKDIR /data
# A new volume takes over the owner of the directory that it covers.
VOLUME ["/data"]
# Of a server. Containers of other commands replace it.
HEALTHCHECK --interval=10s --timeout=6s --start-period=1m --start-interval=1s --retries=3 CMD ["chancery", "ready"]
ENTRYPOINT ["chancery"]
CMD ["serve"]

ARG REVISION=unknown
LABEL org.opencontainers.image.title="Chancery" \
      org.opencontainers.image.description="Event-sourced control plane" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}"
