package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// repository makes a small repository with all that a release is made from.
func repository(t *testing.T) string {
	t.Helper()
	root := source(t, "operator")
	deployment := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: operator}\nspec:\n  template:\n    spec:\n      containers:\n      - image: registry.invalid/sidecarset-operator:dev\n        name: operator\n"
	for file, text := range map[string]string{
		"CHANGELOG.md":                                "# Changes\n\n## v1.3.0\n\nLater.\n\n## v1.2.3 (2026-01-02)\n\n* The change: [see](docs/a.md#b), [or](https://example.com).\n\n## v1.2.2\n\nEarlier.\n",
		"cmd/kubectl-sidecarset/go.mod":               "module example.com/plugin\n\ngo 1.26.0\n",
		"cmd/kubectl-sidecarset/main.go":              "package main\n\nvar version string\n\nfunc main() { println(version) }\n",
		"config/default/kustomization.yaml":           "resources: [deployment.yaml]\n",
		"config/default/deployment.yaml":              deployment,
		"config/overlays/hardened/kustomization.yaml": "resources: [../../default]\n",
		"charts/sidecarset/Chart.yaml":                "apiVersion: v2\nname: sidecarset\nversion: 0.0.0\nappVersion: dev\nannotations:\n  images: |\n    image: registry.invalid/sidecarset-operator:dev\n",
		"charts/sidecarset/values.yaml":               "image: registry.invalid/sidecarset-operator # not registry.invalid/\n",
		"charts/sidecarset/.helmignore":               "# of tests\ntests/\n*.orig\n",
		"charts/sidecarset/tests/a.yaml":              "a: 1\n",
		"charts/sidecarset/values.yaml.orig":          "a: 1\n",
	} {
		path := filepath.Join(root, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// releaseOf runs the command release and returns what it has written, by file.
func releaseOf(t *testing.T, root string, args ...string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	rule := strings.Repeat("=", 80)
	out, notices := filepath.Join(dir, "out"), filepath.Join(dir, "notices.txt")
	if err := os.WriteFile(notices, []byte("A preface.\n\n"+rule+"\nGo: LICENSE\nGo, src: PATENTS\n"+rule+"\nRedistributions in binary form must\nNeither the name of\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	args = append([]string{"--source=" + root, "--out=" + out, "--notices=" + notices, "--plugin-notices=" + notices, "--plugin-platforms=linux/amd64,windows/amd64"}, args...)
	if err := releaseCommand(t.Context(), args); err != nil {
		t.Fatal(err)
	}
	return filesOf(t, out)
}

func TestARelease(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	args := []string{"--version=v1.2.3", "--registry=" + host + "/team", "--url=https://example.com/v1.2.3", "--push"}
	files := releaseOf(t, repository(t), args...)

	want := []string{
		"RELEASE_NOTES.md", "SHA256SUMS", "install-hardened.yaml", "install.yaml", "krew-sidecarset.yaml",
		"kubectl-sidecarset_v1.2.3_linux_amd64.cdx.json", "kubectl-sidecarset_v1.2.3_linux_amd64.tar.gz",
		"kubectl-sidecarset_v1.2.3_windows_amd64.cdx.json", "kubectl-sidecarset_v1.2.3_windows_amd64.zip",
		"sidecarset-1.2.3.tgz", "sidecarset-operator_v1.2.3_image.cdx.json", "sidecarset-operator_v1.2.3_linux_amd64.cdx.json",
		"sidecarset-operator_v1.2.3_linux_arm64.cdx.json", "sidecarset_v1.2.3.oci.tar",
	}
	if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, want) {
		t.Errorf("files\n%q, want\n%q", got, want)
	}
	if lines := strings.Count(files["SHA256SUMS"], "\n"); lines != len(want)-1 {
		t.Errorf("sums of %d files, want all but SHA256SUMS", lines)
	}
	if got, want := files["RELEASE_NOTES.md"], "* The change: [see]("+pages+"v1.2.3/docs/a.md#b), [or](https://example.com).\n\n## Install\n"; !strings.HasPrefix(got, want) {
		t.Errorf("notes %q, want %q", got, want)
	}
	again := releaseOf(t, repository(t), args...)
	for file := range files {
		if files[file] != again[file] {
			t.Errorf("%s of two builds, in two directories, differs", file)
		}
	}

	image, err := name.ParseReference(host + "/team/sidecarset-operator:v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	pushed, err := remote.Get(image)
	if err != nil {
		t.Fatal(err)
	}
	by := "image: " + image.Name() + "@" + pushed.Digest.String() + "\n"
	for _, file := range []string{"install.yaml", "install-hardened.yaml"} {
		if !strings.Contains(files[file], by) {
			t.Errorf("%s does not have %q:\n%s", file, by, files[file])
		}
	}
	index := untar(t, strings.NewReader(files["sidecarset_v1.2.3.oci.tar"]))["index.json"]
	for _, part := range []string{pushed.Digest.String(), `"` + image.Name() + `"`, `"` + host + `/team/charts/sidecarset:1.2.3"`} {
		if !strings.Contains(index, part) {
			t.Errorf("the layout has no %s: %s", part, index)
		}
	}
	checkPushedChart(t, host+"/team/charts/sidecarset:1.2.3", files["sidecarset-1.2.3.tgz"])
	checkBill(t, files["sidecarset-operator_v1.2.3_image.cdx.json"], "sidecarset-operator@"+pushed.Digest.String())
	checkBill(t, files["kubectl-sidecarset_v1.2.3_windows_amd64.cdx.json"], "pkg:generic/kubectl-sidecarset@v1.2.3?platform=windows/amd64")
}

// checkPushedChart pulls a chart as Helm does: by the media types of its manifest.
func checkPushedChart(t *testing.T, reference, file string) {
	t.Helper()
	ref, err := name.ParseReference(reference)
	if err != nil {
		t.Fatal(err)
	}
	image, err := remote.Image(ref)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if manifest.Config.MediaType != chartConfig || len(manifest.Layers) != 1 || manifest.Layers[0].MediaType != chartContent {
		t.Errorf("the manifest of the chart is %+v", manifest)
	}
	config, err := image.RawConfigFile()
	host, _, _ := strings.Cut(reference, "/charts/")
	if want := `{"annotations":{"images":"image: ` + host + `/sidecarset-operator:v1.2.3\n"},"apiVersion":"v2","appVersion":"v1.2.3","name":"sidecarset","version":"1.2.3"}`; err != nil || string(config) != want {
		t.Errorf("the config is %s, %v; want %s", config, err, want)
	}
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	content, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	if layer, err := io.ReadAll(content); err != nil || string(layer) != file {
		t.Errorf("the registry has %d bytes, %v; the file has %d", len(layer), err, len(file))
	}
	unpacked, err := gzip.NewReader(strings.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	files := untar(t, unpacked)
	want := map[string]string{
		"sidecarset/Chart.yaml":  "apiVersion: v2\nname: sidecarset\nversion: 1.2.3\nappVersion: \"v1.2.3\"\nannotations:\n  images: |\n    image: " + host + "/sidecarset-operator:v1.2.3\n",
		"sidecarset/values.yaml": "image: " + host + "/sidecarset-operator # not registry.invalid/\n",
	}
	if !maps.Equal(files, want) {
		t.Errorf("the chart has %q, want %q", files, want)
	}
}

func untar(t *testing.T, from io.Reader) map[string]string {
	t.Helper()
	files := map[string]string{}
	for archive := tar.NewReader(from); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(content)
	}
}

func checkBill(t *testing.T, text, url string) {
	t.Helper()
	var bom struct {
		BOMFormat, SpecVersion string
		Metadata               struct{ Component struct{ Purl string } }
		Components             []struct {
			Purl     string
			Licenses []struct{ License struct{ ID string } }
		}
	}
	if err := json.NewDecoder(bytes.NewBufferString(text)).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	if bom.BOMFormat != "CycloneDX" || !strings.Contains(bom.Metadata.Component.Purl, url) || len(bom.Components) != 1 || !strings.HasPrefix(bom.Components[0].Purl, "pkg:golang/std@1.") ||
		bom.Components[0].Licenses[0].License.ID != "BSD-3-Clause" {
		t.Errorf("the bill of materials of %s is %+v", url, bom)
	}
}

func TestAReleaseNeedsAVersionOfTheChangelog(t *testing.T) {
	for version, want := range map[string]string{"v1.2": "not like v1.2.3", "v1.2.4": "CHANGELOG.md has no heading for v1.2.4"} {
		err := releaseCommand(t.Context(), []string{"--source=" + repository(t), "--version=" + version, "--notices=x", "--plugin-notices=x", "--out=" + t.TempDir()})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("version %s: %v, want an error with %q", version, err, want)
		}
	}
}
