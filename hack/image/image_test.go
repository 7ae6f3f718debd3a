package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// source makes a module with a small program, which takes the place of the operator.
func source(t *testing.T, says string) string {
	t.Helper()
	dir := t.TempDir()
	for file, text := range map[string]string{
		"go.mod":  "module example.com/operator\n\ngo 1.26.0\n",
		"main.go": "package main\n\nvar version string\n\nfunc main() { println(version, \"" + says + "\") }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// build runs the command operator and returns the layout's one entry.
func build(t *testing.T, args ...string) (v1.ImageIndex, v1.Descriptor) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	notices := filepath.Join(t.TempDir(), "NOTICES")
	if err := os.WriteFile(notices, []byte("licences\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := operatorCommand(t.Context(), append(args, "--layout="+dir, "--notices="+notices)); err != nil {
		t.Fatal(err)
	}
	all, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := all.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("the layout has the entries %v, %v; want one", manifest, err)
	}
	index, err := all.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return index, manifest.Manifests[0]
}

func TestAnImageForEachPlatform(t *testing.T) {
	index, entry := build(t, "--source="+source(t, "a"), "--name=registry.example.com/operator:v1")
	if got := entry.Annotations["org.opencontainers.image.ref.name"]; got != "registry.example.com/operator:v1" {
		t.Errorf("the layout calls the image %q", got)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, m := range manifest.Manifests {
		platforms = append(platforms, m.Platform.String())
		image, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkPlatform(image, m.Platform.Architecture); err != nil {
			t.Error(err)
		}
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(platforms, want) {
		t.Errorf("the image is for %q, want %q", platforms, want)
	}
}

// The Dockerfile and this tool make the same image.
func TestTheDockerfileMakesTheSameImage(t *testing.T) {
	text, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	dockerfile := string(text)
	_, final, _ := strings.Cut(dockerfile, "\nFROM ${BASE}\n")
	image := operatorImage("linux/amd64", "", "", "${VERSION}", "${REVISION}")

	if got := values(final, `(?m)^USER (.*)$`); !slices.Equal(got, []string{image.User}) || !regexp.MustCompile(`^[1-9]\d*:\d+$`).MatchString(image.User) {
		t.Errorf("the Dockerfile's user is %q, the tool's %q; want one that is not root, by number", got, image.User)
	}
	if got := values(final, `(?m)^ENTRYPOINT \["(.*)"\]$`); !slices.Equal(got, []string{image.Entrypoint}) {
		t.Errorf("the Dockerfile's entrypoint is %q, the tool's %q", got, image.Entrypoint)
	}
	if got := values(final, `(?m)^EXPOSE (.*)$`); !slices.Equal(got, []string{strings.Join(image.Ports, " ")}) {
		t.Errorf("the Dockerfile exposes %q, the tool %q", got, image.Ports)
	}
	var files []string
	for _, file := range image.Files {
		files = append(files, file.Path)
	}
	if got := values(final, `(?m)^COPY .* (\S+)$`); !slices.Equal(got, files) {
		t.Errorf("the Dockerfile copies %q, the tool %q", got, files)
	}
	labels := map[string]string{}
	for _, found := range regexp.MustCompile(`(?m)^LABEL (\S+)="(.*)"$`).FindAllStringSubmatch(final, -1) {
		labels[found[1]] = found[2]
	}
	if len(labels) != len(image.Labels) {
		t.Errorf("the Dockerfile has the labels %q, the tool %q", labels, image.Labels)
	}
	for key, value := range image.Labels {
		if labels[key] != value {
			t.Errorf("label %s is %q in the Dockerfile, %q in the tool", key, labels[key], value)
		}
	}
	command := strings.Join(buildFlags, " ") + ` -ldflags="` + ldflags("${VERSION}") + `"`
	if !strings.Contains(dockerfile, "RUN CGO_ENABLED=0 ") || !strings.Contains(dockerfile, command) {
		t.Errorf("the Dockerfile does not compile with CGO_ENABLED=0 and %s", command)
	}
}

func values(text, pattern string) []string {
	var all []string
	for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all = append(all, found[1])
	}
	return all
}
