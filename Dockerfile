# A static binary and the licences of what it is built from, in an image that
# holds nothing else: no shell, no package manager, no root. `make image` builds
# the same image without Docker; a test of hack/image compares the two. Both bases
# may be replaced, where images have to begin with one of your own:
#   docker build --build-arg BASE=registry.example.com/base:v1 .
#
# scratch is not an image, so it has no digest. The other base is named by its tag,
# which can be moved. To pin it, look up the digest once and pass it on:
#   docker buildx imagetools inspect --format '{{.Manifest.Digest}}' golang:1.26.8
#   docker build --build-arg GO_IMAGE=golang:1.26.8@sha256:... .
ARG GO_IMAGE=golang:1.26.8
ARG BASE=scratch

FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
WORKDIR /src
# Modules first: they change less often than code.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=dev
RUN CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH} \
    go build -buildvcs=false -trimpath -ldflags="-s -w -X main.version=${VERSION}" -o /sidecarset-operator .
RUN go run ./hack/notices >/NOTICES

FROM ${BASE}
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sidecarset-operator"
LABEL org.opencontainers.image.description="Injects the containers of SidecarSets into Pods and keeps them up to date"
LABEL org.opencontainers.image.version="${VERSION}"
LABEL org.opencontainers.image.revision="${REVISION}"
COPY --from=build /NOTICES /NOTICES
COPY --from=build /sidecarset-operator /sidecarset-operator
USER 65532:65532
# Webhooks, metrics, probes.
EXPOSE 9443 8443 8081
ENTRYPOINT ["/sidecarset-operator"]
