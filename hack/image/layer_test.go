package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// checkPlatform reads the operator out of an image, and checks that it is a static program of
// the architecture, that every user may run it, and that root owns it.
func checkPlatform(image v1.Image, architecture string) error {
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	if config.Architecture != architecture || config.Config.User != operatorUser {
		return fmt.Errorf("the image of %s says it is for %s, and runs as %q", architecture, config.Architecture, config.Config.User)
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	if len(layers) != 1 {
		return fmt.Errorf("the image has %d layers, want one", len(layers))
	}
	layer, err := layers[0].Uncompressed()
	if err != nil {
		return err
	}
	defer layer.Close()
	archive := tar.NewReader(layer)
	for {
		header, err := archive.Next()
		if err != nil {
			return fmt.Errorf("looking for %s: %w", operatorPath, err)
		}
		if "/"+header.Name != operatorPath {
			continue
		}
		if header.Mode != 0o755 || header.Uid != 0 || header.Gid != 0 {
			return fmt.Errorf("%s has mode %o and belongs to %d:%d", operatorPath, header.Mode, header.Uid, header.Gid)
		}
		program, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		return checkProgram(program, architecture)
	}
}

func checkProgram(program []byte, architecture string) error {
	file, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return err
	}
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	libraries, _ := file.ImportedLibraries()
	if file.Machine != machines[architecture] || len(libraries) > 0 {
		return fmt.Errorf("the program of %s is for %s and needs the libraries %q", architecture, file.Machine, libraries)
	}
	return nil
}
