# The program in an image of its own: `docker build -t chancery .`, or by docker-compose.yml. Wants BuildKit.
#
# The toolchain is that of rust-toolchain.toml (a test compares them). That file stays outside: it would also fetch
# tools that only people need.
FROM rust:1.95.0-bookworm AS build

WORKDIR /src
COPY . .
# librdkafka and OpenSSL are built from their sources with gcc, make and perl, which are in this image; zlib and zstd come
# with librdkafka. Names of functions stay for backtraces, lines do not.
ENV CARGO_PROFILE_RELEASE_STRIP=debuginfo
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked -p chancery --features kafka-tls && \
    cp target/release/chancery /usr/local/bin/chancery

# The same Debian: its C library is not older than the one that was linked. It has a shell, for checks of health and
# for processes that an executor starts.
FROM debian:bookworm-slim

# The authorities that may have signed certificates of brokers.
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*

RUN groupadd --gid 10001 chancery && \
    useradd --uid 10001 --gid chancery --home-dir /data --no-create-home --shell /usr/sbin/nologin chancery && \
    install --directory --owner=chancery --group=chancery /data
COPY --from=build /usr/local/bin/chancery /usr/local/bin/chancery

# By number, so that an operator can see that it is not root.
USER 10001:10001
ENV CHANCERY_DATA_DIR=/data
WORKDIR /data
# A new volume takes over the owner of the directory that it covers.
VOLUME ["/data"]
ENTRYPOINT ["chancery"]
CMD ["serve"]
