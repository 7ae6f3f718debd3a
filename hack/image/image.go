package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Image describes an image of one platform. It has no base image.
type Image struct {
	Platform   string // such as linux/arm64
	Files      []File // in one layer, in this order, owned by root
	Entrypoint string
	User       string // numeric; empty means root
	Ports      []string
	Env        []string
	Labels     map[string]string
}

// File is a file of an image.
type File struct {
	Path string // in the image
	From string // on this machine
	Mode int64
}

// created is the time of everything in an image: the same for each build.
var created = time.Unix(0, 0).UTC()

// assemble makes the image; its digest depends on the fields and on the contents
// of the files.
func (i Image) assemble() (v1.Image, error) {
	archive, err := i.archive()
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(archive)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	system, architecture, _ := strings.Cut(i.Platform, "/")
	config := v1.Config{User: i.User, Env: i.Env, Labels: i.Labels, Entrypoint: []string{i.Entrypoint}}
	for _, port := range i.Ports {
		if config.ExposedPorts == nil {
			config.ExposedPorts = map[string]struct{}{}
		}
		config.ExposedPorts[port+"/tcp"] = struct{}{}
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		OS: system, Architecture: architecture, Config: config, Created: v1.Time{Time: created},
		RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: created}}})
}

// archive is the uncompressed layer.
func (i Image) archive() ([]byte, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, file := range i.Files {
		content, err := os.ReadFile(file.From)
		if err != nil {
			return nil, err
		}
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: strings.TrimPrefix(file.Path, "/"), Mode: file.Mode, Size: int64(len(content)),
			ModTime: created, Format: tar.FormatUSTAR,
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	err := w.Close() // writes the end of the archive
	return archive.Bytes(), err
}

// index joins images of several platforms.
func index(images []Image) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, i := range images {
		image, err := i.assemble()
		if err != nil {
			return nil, err
		}
		system, architecture, _ := strings.Cut(i.Platform, "/")
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: system, Architecture: architecture}},
		})
	}
	return index, nil
}

// write writes the index where out says, and prints its digest.
func write(ctx context.Context, images []Image, out output) error {
	index, err := index(images)
	if err != nil {
		return err
	}
	if out.layout != "" {
		if err := writeLayout(index, out); err != nil {
			return fmt.Errorf("writing the OCI layout %s: %w", out.layout, err)
		}
	}
	if out.push {
		reference, err := name.ParseReference(out.name)
		if err != nil {
			return err
		}
		if err := remote.WriteIndex(reference, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("pushing %s: %w", out.name, err)
		}
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Println(digest)
	return nil
}

// writeLayout writes a layout with one entry, the index, under the image's name.
func writeLayout(index v1.ImageIndex, out output) error {
	if err := os.RemoveAll(out.layout); err != nil {
		return err
	}
	path, err := layout.Write(out.layout, empty.Index)
	if err != nil {
		return err
	}
	var options []layout.Option
	if out.name != "" {
		options = append(options, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": out.name}))
	}
	return path.AppendIndex(index, options...)
}
