# The same image as `go -C release run . image` makes, for those whose tools start from a Dockerfile:
#
#   docker build --build-arg VERSION=v1.2.3 -t registry.example.com/meshcni/meshcni:v1.2.3 .
#   docker build --platform linux/amd64,linux/arm64 ...
#
# The files are the same, byte for byte; their times, and so the digest, are the builder's.

# The version is that of the toolchain line in release/go.mod. What is built is for the target, not by it: nothing is emulated.
FROM --platform=$BUILDPLATFORM golang:1.26.8 AS build
WORKDIR /src
COPY go.mod go.sum ./
COPY cmd/go.mod cmd/go.sum cmd/
COPY release/go.mod release/go.sum release/
RUN go -C cmd mod download && go -C release mod download
COPY . .
ARG TARGETARCH
ARG VERSION=v0.0.0-devel
# Both are of the commit: its hash, and its time in seconds since 1970.
ARG COMMIT
ARG SOURCE_DATE_EPOCH
RUN go -C release run . rootfs --arch "$TARGETARCH" --version "$VERSION" --commit "$COMMIT" --output /rootfs

FROM scratch
ARG VERSION=v0.0.0-devel
ARG COMMIT
LABEL org.opencontainers.image.title="meshcni" \
      org.opencontainers.image.description="CNI plugin and node agent that put pods' traffic through their service mesh's proxy" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/meshcni/meshcni" \
      org.opencontainers.image.documentation="https://github.com/meshcni/meshcni/tree/main/docs" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$COMMIT"
COPY --from=build /rootfs/ /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
USER 0:0
WORKDIR /
ENTRYPOINT ["/usr/local/bin/meshcni-node"]
CMD ["run"]
