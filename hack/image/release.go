package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// release is what a release is made from.
type release struct {
	source, version, revision, registry, url string
	notices, pluginNotices, licence          string
	platforms, pluginPlatforms               string
	out                                      string
	push                                     bool

	work, notes string
	image       string // with its digest
}

// layouts are the files with the manifests of each layout.
var layouts = map[string]string{"install.yaml": "config/default", "install-hardened.yaml": "config/overlays/hardened"}

func releaseCommand(ctx context.Context, args []string) (err error) {
	var r release
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&r.source, "source", ".", "`directory` of the repository")
	flags.StringVar(&r.version, "version", "", "the `version`, as v1.2.3; CHANGELOG.md has a heading with it")
	flags.StringVar(&r.revision, "revision", "unknown", "the `commit` that is released")
	flags.StringVar(&r.registry, "registry", invalidRegistry, "the `registry` of the image, and of the chart below charts/")
	flags.StringVar(&r.url, "url", "https://registry.invalid/releases", "the `URL` of the directory from which the files are downloaded")
	flags.StringVar(&r.notices, "notices", "", "`file` with the licences of what the operator is built from")
	flags.StringVar(&r.pluginNotices, "plugin-notices", "", "`file` with the licences of what the plugin is built from")
	flags.StringVar(&r.licence, "licence", "", "`file` with the licence of the project, if it has one")
	flags.StringVar(&r.platforms, "platforms", "linux/amd64,linux/arm64", "`list` of platforms of the operator")
	flags.StringVar(&r.pluginPlatforms, "plugin-platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64", "`list` of platforms of the plugin")
	flags.StringVar(&r.out, "out", "dist/release", "`directory` to write; what is there is replaced")
	flags.BoolVar(&r.push, "push", false, "push the image and the chart to the registry too, with the credentials of the user's Docker configuration")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case !krewVersion.MatchString(r.version):
		return fmt.Errorf("the version %q is not like v1.2.3", r.version)
	case r.notices == "" || r.pluginNotices == "":
		return errors.New("a release needs the licences of its parts: --notices and --plugin-notices")
	}
	if r.work, err = os.MkdirTemp("", "release-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.work)
	if err := errors.Join(os.RemoveAll(r.out), os.MkdirAll(r.out, 0o755)); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{r.readNotes, r.writeImages, r.writePlugin, r.writeNotes, r.writeSums} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) file(name string, content []byte) error {
	return os.WriteFile(filepath.Join(r.out, name), content, 0o644)
}

// readNotes takes the notes from the section of the version in CHANGELOG.md.
func (r *release) readNotes(context.Context) error {
	text, err := os.ReadFile(filepath.Join(r.source, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	begin := regexp.MustCompile(`(?m)^## ` + regexp.QuoteMeta(r.version) + `(?: .*)?$`).FindIndex(text)
	if begin == nil {
		return fmt.Errorf("CHANGELOG.md has no heading for %s", r.version)
	}
	notes := text[begin[1]:]
	if end := bytes.Index(notes, []byte("\n## ")); end >= 0 {
		notes = notes[:end]
	}
	r.notes = string(bytes.TrimSpace(notes))
	return nil
}

// The pages of the repository, and links to them that are relative.
const pages = "https://github.com/sidecarset/operator/blob/"

var relative = regexp.MustCompile(`\]\(([^):]+)\)`)

// writeNotes adds to the notes what the release is and how it is installed. A page of releases is not in the
// repository, so links become absolute.
func (r *release) writeNotes(context.Context) error {
	chart := fmt.Sprintf("oci://%s/charts/sidecarset --version %s", r.registry, strings.TrimPrefix(r.version, "v"))
	return r.file("RELEASE_NOTES.md", fmt.Appendf(nil, `%s

## Install

    helm install sidecarset %s --namespace sidecarset-system --create-namespace

or

    kubectl apply --server-side -f %s/install.yaml

`+"`install-hardened.yaml` is the [profile](%s%s/docs/install.md#profiles) `hardened`. The image is `%s`.\n"+
		"`SHA256SUMS` has the sums of all files. Each `.cdx.json` says what a program or the image is built from, and under which licences.\n",
		relative.ReplaceAllString(r.notes, "]("+pages+r.version+"/$1)"), chart, r.url, pages, r.version, r.image))
}

// writeImages writes an OCI layout with the operator's image and the chart, what names them,
// and their bills of materials.
func (r *release) writeImages(ctx context.Context) error {
	var programs []string
	images, err := operatorImages(strings.Split(r.platforms, ","), r.notices, r.version, r.revision, func(platform string) (string, error) {
		program, err := compileInto(ctx, r.work, r.source, platform, r.version)
		if err != nil {
			return "", err
		}
		programs = append(programs, program)
		return program, r.writeBill("sidecarset-operator", platform, r.notices, program)
	})
	if err != nil {
		return err
	}
	operator, err := index(images)
	if err != nil {
		return err
	}
	digest, err := operator.Digest()
	if err != nil {
		return err
	}
	packed, err := packChart(filepath.Join(r.source, "charts", "sidecarset"), filepath.Join(r.work, "chart"), r.version, r.registry)
	if err != nil {
		return err
	}
	chart, err := packed.image()
	if err != nil {
		return err
	}
	image := r.registry + "/sidecarset-operator"
	url := fmt.Sprintf("pkg:oci/sidecarset-operator@%s?repository_url=%s&tag=%s", digest, image, r.version)
	text, err := bill(cdx.Component{Type: cdx.ComponentTypeContainer, Name: image, Version: r.version, PackageURL: url}, r.notices, programs...)
	if err != nil {
		return err
	}
	r.image = fmt.Sprintf("%s:%s@%s", image, r.version, digest)
	return errors.Join(
		r.file("sidecarset-operator_"+r.version+"_image.cdx.json", text),
		r.file(packed.name+"-"+packed.version+".tgz", packed.archive),
		r.writeManifests(r.image),
		r.publish(ctx, operator, image+":"+r.version, chart, r.registry+"/charts/"+packed.name+":"+packed.version),
	)
}

// publish writes the layout, as one file, and pushes if that is wanted.
func (r *release) publish(ctx context.Context, operator v1.ImageIndex, image string, chart v1.Image, chartName string) error {
	dir := filepath.Join(r.work, "layout")
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	called := func(name string) layout.Option {
		return layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": name})
	}
	if err := errors.Join(path.AppendIndex(operator, called(image)), path.AppendImage(chart, called(chartName))); err != nil {
		return fmt.Errorf("writing the OCI layout: %w", err)
	}
	var files []File
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			relative, _ := filepath.Rel(dir, path)
			files = append(files, File{Path: filepath.ToSlash(relative), From: path, Mode: 0o644})
		}
		return err
	})
	if err != nil {
		return err
	}
	archive, err := Image{Files: files}.archive()
	if err != nil {
		return err
	}
	if err := r.file("sidecarset_"+r.version+".oci.tar", archive); err != nil || !r.push {
		return err
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	to, err := name.ParseReference(image)
	if err != nil {
		return err
	}
	chartTo, err := name.ParseReference(chartName)
	if err != nil {
		return err
	}
	if err := errors.Join(remote.WriteIndex(to, operator, options...), remote.Write(chartTo, chart, options...)); err != nil {
		return fmt.Errorf("pushing to %s: %w", r.registry, err)
	}
	return nil
}

var imageInManifests = regexp.MustCompile(`image: registry\.invalid/sidecarset-operator:\S*`)

// writeManifests writes the manifests of each layout, which name the image by its digest.
func (r *release) writeManifests(image string) error {
	for file, layout := range layouts {
		options := krusty.MakeDefaultOptions()
		options.Reorder = krusty.ReorderOptionLegacy // Namespaces first
		objects, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), filepath.Join(r.source, layout))
		if err != nil {
			return fmt.Errorf("building the layout %s: %w", layout, err)
		}
		text, err := objects.AsYaml()
		if err != nil {
			return err
		}
		if !imageInManifests.Match(text) {
			return fmt.Errorf("the layout %s names no image of %s", layout, invalidRegistry)
		}
		if err := r.file(file, imageInManifests.ReplaceAll(text, []byte("image: "+image))); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) writePlugin(ctx context.Context) error {
	work := filepath.Join(r.work, "plugin")
	if err := os.Mkdir(work, 0o755); err != nil {
		return err
	}
	beside := []File{{Path: "NOTICES", From: r.pluginNotices, Mode: 0o644}}
	if r.licence != "" {
		beside = append(beside, File{Path: "LICENSE", From: r.licence, Mode: 0o644})
	}
	source := filepath.Join(r.source, "cmd", pluginName)
	archives, err := writePlugin(ctx, source, work, r.out, strings.Split(r.pluginPlatforms, ","), r.version, r.url, beside)
	if err != nil {
		return err
	}
	for _, archive := range archives {
		if err := r.writeBill(pluginName, archive.System+"/"+archive.Architecture, r.pluginNotices, archive.built); err != nil {
			return err
		}
	}
	return nil
}

// writeBill writes the bill of materials of a program.
func (r *release) writeBill(program, platform, notices, file string) error {
	url := fmt.Sprintf("pkg:generic/%s@%s?platform=%s", program, r.version, platform)
	text, err := bill(cdx.Component{Type: cdx.ComponentTypeApplication, Name: program, Version: r.version, PackageURL: url}, notices, file)
	if err != nil {
		return err
	}
	return r.file(fmt.Sprintf("%s_%s_%s.cdx.json", program, r.version, strings.ReplaceAll(platform, "/", "_")), text)
}

// writeSums writes and prints the sums of all files.
func (r *release) writeSums(context.Context) error {
	entries, err := os.ReadDir(r.out) // sorted
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(r.out, entry.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), entry.Name())
	}
	fmt.Print(sums.String())
	return r.file("SHA256SUMS", sums.Bytes())
}
