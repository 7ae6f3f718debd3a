# syntax=docker/dockerfile:1

# A static binary in an image that holds nothing else: no shell, no package
# manager, no root, no file besides. Both bases may be replaced, where images have
# to begin with one of your own:
#   docker build --build-arg BASE=registry.example.com/base:v1 .
ARG GO_IMAGE=golang:1.26
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

FROM ${BASE}
COPY --from=build /sidecarset-operator /sidecarset-operator
USER 65532:65532
# Webhooks, metrics, probes.
EXPOSE 9443 8443 8081
ENTRYPOINT ["/sidecarset-operator"]
