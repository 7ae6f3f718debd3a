package main

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
	"time"
)

const pluginName = "kubectl-sidecarset"

// pluginArchive is the plugin for one platform, as the Krew manifest names it.
type pluginArchive struct {
	System, Architecture string
	File, Sum            string // in hexadecimal digits
	Program              string // in the archive
	built                string // the file of the program
}

// krewFile is the manifest among the archives. Krew's index has it as sidecarset.yaml.
const krewFile = "krew-sidecarset.yaml"

//go:embed krew.yaml
var krewManifest string

// krewVersion matches what Krew takes for a version.
var krewVersion = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

func pluginCommand(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("plugin", flag.ContinueOnError)
	source := flags.String("source", "cmd/kubectl-sidecarset", "`directory` of the plugin's module")
	version := flags.String("version", "dev", "the plugin's version")
	notices := flags.String("notices", "", "`file` with the licences of what the plugin is built from, as hack/notices prints them")
	licence := flags.String("licence", "", "`file` with the licence of the plugin itself, if it has one")
	url := flags.String("url", "https://registry.invalid/kubectl-sidecarset", "the `URL` of the directory from which Krew downloads the archives")
	out := flags.String("out", "dist/plugin", "`directory` to write; what is there is replaced")
	platforms := flags.String("platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64", "`list` of platforms")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *notices == "" {
		return errors.New("an archive needs the licences of its parts: go run ./hack/notices cmd/kubectl-sidecarset >FILE, and --notices=FILE")
	}
	beside := []File{{Path: "NOTICES", From: *notices, Mode: 0o644}}
	if *licence != "" {
		beside = append(beside, File{Path: "LICENSE", From: *licence, Mode: 0o644})
	}
	work, err := os.MkdirTemp("", "plugin-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := errors.Join(os.RemoveAll(*out), os.MkdirAll(*out, 0o755)); err != nil {
		return err
	}
	archives, err := writePlugin(ctx, *source, work, *out, strings.Split(*platforms, ","), *version, *url, beside)
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, archive := range archives {
		fmt.Fprintf(&sums, "%s  %s\n", archive.Sum, archive.File)
	}
	fmt.Print(sums.String())
	return os.WriteFile(filepath.Join(*out, "SHA256SUMS"), sums.Bytes(), 0o644)
}

// writePlugin writes the archives and their manifest into the directory out, and leaves the
// programs in the directory work.
func writePlugin(ctx context.Context, source, work, out string, platforms []string, version, url string, beside []File) ([]pluginArchive, error) {
	var archives []pluginArchive
	for _, platform := range platforms {
		archive, content, err := buildPlugin(ctx, source, work, platform, version, beside)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(out, archive.File), content, 0o644); err != nil {
			return nil, err
		}
		archives = append(archives, archive)
	}
	manifest, err := renderManifest(version, url, archives)
	if err != nil {
		return nil, err
	}
	return archives, os.WriteFile(filepath.Join(out, krewFile), manifest, 0o644)
}

// buildPlugin compiles the plugin and puts it into an archive: a zip file for Windows.
func buildPlugin(ctx context.Context, source, work, platform, version string, beside []File) (pluginArchive, []byte, error) {
	program, err := compileInto(ctx, work, source, platform, version)
	if err != nil {
		return pluginArchive{}, nil, err
	}
	a := pluginArchive{Program: pluginName, built: program}
	a.System, a.Architecture, _ = strings.Cut(platform, "/")
	pack, suffix := tarred, ".tar.gz"
	if a.System == "windows" {
		pack, suffix = zipped, ".zip"
		a.Program += ".exe"
	}
	content, err := pack(append([]File{{Path: a.Program, From: program, Mode: 0o755}}, beside...))
	a.File = strings.Join([]string{pluginName, version, a.System, a.Architecture}, "_") + suffix
	a.Sum = fmt.Sprintf("%x", sha256.Sum256(content))
	return a, content, err
}

func tarred(files []File) ([]byte, error) {
	archive, err := Image{Files: files}.archive()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	_, err = w.Write(archive)
	err = errors.Join(err, w.Close())
	return out.Bytes(), err
}

// zipEpoch is the first time that a zip file can name.
var zipEpoch = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

func zipped(files []File) ([]byte, error) {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, file := range files {
		content, err := os.ReadFile(file.From)
		if err != nil {
			return nil, err
		}
		header := &zip.FileHeader{Name: file.Path, Method: zip.Deflate, Modified: zipEpoch}
		header.SetMode(fs.FileMode(file.Mode))
		one, err := w.CreateHeader(header)
		if err != nil {
			return nil, err
		}
		if _, err := one.Write(content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// renderManifest fills in the Krew manifest. A build between releases gets a version that comes
// before all releases.
func renderManifest(version, url string, archives []pluginArchive) ([]byte, error) {
	if !krewVersion.MatchString(version) {
		version = "v0.0.0-git-" + version
	}
	parsed, err := template.New("krew.yaml").Parse(krewManifest)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = parsed.Execute(&out, map[string]any{"Version": version, "URL": strings.TrimSuffix(url, "/"), "Archives": archives})
	return out.Bytes(), err
}
