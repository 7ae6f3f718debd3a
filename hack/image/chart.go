package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// The media types of a chart in a registry, as Helm has them.
const (
	chartConfig  types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartContent types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// invalidRegistry stands for the registry in manifests and in the chart.
const invalidRegistry = "registry.invalid"

var (
	chartVersion = regexp.MustCompile(`(?m)^version:.*$`)
	appVersion   = regexp.MustCompile(`(?m)^appVersion:.*$`)

	imageOfCheckout = regexp.MustCompile(`(?m)^( *image: .*):dev$`) // in the annotation with the images
)

// chart is a packed chart.
type chart struct {
	name, version string
	metadata      []byte // Chart.yaml as JSON
	archive       []byte
}

// packChart packs the chart of a directory, for a version of the operator whose image is in the
// registry. It needs the directory work for itself.
func packChart(dir, work, version, registry string) (chart, error) {
	c := chart{version: strings.TrimPrefix(version, "v")}
	ignored, err := helmIgnore(dir)
	if err != nil {
		return c, err
	}
	var files []File
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		relative, _ := filepath.Rel(dir, path)
		switch {
		case err != nil || relative == ".":
			return err
		case ignored(relative, entry.IsDir()) && entry.IsDir():
			return filepath.SkipDir
		case ignored(relative, entry.IsDir()) || entry.IsDir():
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text = bytes.ReplaceAll(text, []byte(invalidRegistry+operatorPath), []byte(registry+operatorPath))
		if relative == "Chart.yaml" {
			text = chartVersion.ReplaceAll(text, []byte("version: "+c.version))
			text = appVersion.ReplaceAll(text, []byte(`appVersion: "`+version+`"`))
			text = imageOfCheckout.ReplaceAll(text, []byte("${1}:"+version))
			if c.metadata, err = yaml.YAMLToJSON(text); err != nil {
				return err
			}
		}
		copied := filepath.Join(work, relative)
		files = append(files, File{Path: relative, From: copied, Mode: 0o644})
		return errors.Join(os.MkdirAll(filepath.Dir(copied), 0o755), os.WriteFile(copied, text, 0o644))
	})
	if err != nil {
		return c, err
	}
	var metadata struct{ Name, Version string }
	if err := json.Unmarshal(c.metadata, &metadata); err != nil || metadata.Name == "" || metadata.Version != c.version {
		return c, fmt.Errorf("%s has no Chart.yaml with a name and a version: %w", dir, err)
	}
	c.name = metadata.Name
	for i := range files {
		files[i].Path = c.name + "/" + filepath.ToSlash(files[i].Path)
	}
	c.archive, err = tarred(files)
	return c, err
}

// helmIgnore returns which files of a chart are not packed, by the patterns of its .helmignore:
// a name, a path, or a directory with a slash at its end. Patterns that begin with ! are refused.
func helmIgnore(dir string) (func(path string, isDir bool) bool, error) {
	text, err := os.ReadFile(filepath.Join(dir, ".helmignore"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	patterns := []string{".helmignore"}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if line := strings.TrimSpace(lines.Text()); strings.HasPrefix(line, "!") {
			return nil, fmt.Errorf("%s/.helmignore: patterns such as %s are not supported", dir, line)
		} else if line != "" && line[0] != '#' {
			patterns = append(patterns, line)
		}
	}
	return func(path string, isDir bool) bool {
		for _, pattern := range patterns {
			name, ofDir := strings.CutSuffix(pattern, "/")
			against := filepath.Base(path)
			if strings.Contains(name, "/") {
				against, name = path, strings.TrimPrefix(name, "/")
			}
			if matches, _ := filepath.Match(name, against); matches && (isDir || !ofDir) {
				return true
			}
		}
		return false
	}, nil
}

// image is the chart as a registry has it.
func (c chart) image() (v1.Image, error) {
	layer := static.NewLayer(c.archive, chartContent)
	config := static.NewLayer(c.metadata, chartConfig)
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Annotations: map[string]string{
		"org.opencontainers.image.title": c.name, "org.opencontainers.image.version": c.version,
	}}
	descriptor, err := partial.Descriptor(config)
	if err != nil {
		return nil, err
	}
	manifest.Config = *descriptor
	if descriptor, err = partial.Descriptor(layer); err != nil {
		return nil, err
	}
	manifest.Layers = []v1.Descriptor{*descriptor}
	raw, err := json.Marshal(manifest)
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(artefact{c.metadata, raw, layer})
}

// artefact is an image of one layer whose config is not that of a container.
type artefact struct {
	config, manifest []byte
	layer            v1.Layer
}

func (a artefact) RawConfigFile() ([]byte, error)                         { return a.config, nil }
func (a artefact) MediaType() (types.MediaType, error)                    { return types.OCIManifestSchema1, nil }
func (a artefact) RawManifest() ([]byte, error)                           { return a.manifest, nil }
func (a artefact) LayerByDigest(v1.Hash) (partial.CompressedLayer, error) { return a.layer, nil }
