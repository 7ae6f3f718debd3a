// Command image builds what is published: the operator's container image, the archives of the
// kubectl plugin, and all the other files of a release. It needs no container tool. It writes OCI layouts and pushes to registries.
// Equal sources and an equal Go toolchain give an image with an equal digest, and equal archives.
// It also builds images for tests.
//
// It is a module of its own, so that the operator's module does not require the libraries of
// the registry protocol.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

const usage = `usage: image COMMAND [FLAG...]

  operator   build the operator for all platforms and put it into an image
  plugin     build the kubectl plugin for all platforms and put it into archives, with a manifest for Krew
  release    build all files of a release: image, chart, manifests, plugin, SBOMs, sums, notes
  program    put a static program into an image, for tests
  registry   serve a registry in memory on loopback, for tests

image COMMAND --help lists the flags.
`

var commands = map[string]func(ctx context.Context, args []string) error{
	"operator": operatorCommand,
	"plugin":   pluginCommand,
	"release":  releaseCommand,
	"program":  programCommand,
	"registry": registryCommand,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := commands[os.Args[1]](ctx, os.Args[2:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// output says where an image goes.
type output struct {
	layout, name string
	push         bool
}

func (o *output) register(fs *flag.FlagSet) {
	fs.StringVar(&o.layout, "layout", "", "`directory` of the OCI layout to write; what is there is replaced")
	fs.StringVar(&o.name, "name", "", "the image's `name`, as registry.example.com/sidecarset-operator:v1")
	fs.BoolVar(&o.push, "push", false, "push to the registry of --name, with the credentials of the user's Docker configuration; http on loopback, https elsewhere")
}

func operatorCommand(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("operator", flag.ContinueOnError)
	var out output
	out.register(fs)
	source := fs.String("source", ".", "`directory` of the operator's module")
	version := fs.String("version", "dev", "the operator's version")
	revision := fs.String("revision", "unknown", "the `commit` that the operator is built from")
	notices := fs.String("notices", "", "`file` with the licences of what the operator is built from, as hack/notices prints them")
	program := fs.String("program", "", "an operator that is built already, for the one platform of --platforms")
	platforms := fs.String("platforms", "linux/amd64,linux/arm64", "`list` of platforms")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *notices == "" {
		return errors.New("an image needs the licences of its parts: go run ./hack/notices >FILE, and --notices=FILE")
	}
	if *program != "" && strings.Contains(*platforms, ",") {
		return errors.New("--program is for one platform: name it with --platforms")
	}
	work, err := os.MkdirTemp("", "image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	images, err := operatorImages(strings.Split(*platforms, ","), *notices, *version, *revision, func(platform string) (string, error) {
		if *program != "" {
			return *program, nil
		}
		return compileInto(ctx, work, *source, platform, *version)
	})
	if err != nil {
		return err
	}
	return write(ctx, images, out)
}

func programCommand(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("program", flag.ContinueOnError)
	var out output
	out.register(fs)
	image := Image{Platform: "linux/amd64"}
	fs.StringVar(&image.Platform, "platform", image.Platform, "the `platform` of the program")
	program := fs.String("program", "", "`file` that becomes the entrypoint")
	fs.Func("env", "`NAME=VALUE` that the program has in its environment; may be repeated", func(env string) error {
		image.Env = append(image.Env, env)
		return nil
	})
	if err := fs.Parse(args); err != nil {
		return err
	}
	image.Entrypoint = "/" + filepath.Base(*program)
	image.Files = []File{{Path: image.Entrypoint, From: *program, Mode: 0o755}}
	return write(ctx, []Image{image}, out)
}
