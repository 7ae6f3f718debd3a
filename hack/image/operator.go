package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The operator's image, as the Dockerfile has it; a test compares the two.
const (
	operatorPath = "/sidecarset-operator"
	operatorUser = "65532:65532"
	description  = "Injects the containers of SidecarSets into Pods and keeps them up to date"
)

var (
	operatorPorts = []string{"9443", "8443", "8081"}
	buildFlags    = []string{"-buildvcs=false", "-trimpath"}
)

func ldflags(version string) string { return "-s -w -X main.version=" + version }

func labels(version, revision string) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       "sidecarset-operator",
		"org.opencontainers.image.description": description,
		"org.opencontainers.image.version":     version,
		"org.opencontainers.image.revision":    revision,
	}
}

// compile builds the program of a module for the platform, without cgo, into a file.
func compile(ctx context.Context, source, file, platform, version string) error {
	system, architecture, ok := strings.Cut(platform, "/")
	if !ok {
		return fmt.Errorf("platform %q is not SYSTEM/ARCHITECTURE", platform)
	}
	args := append([]string{"build", "-C", source}, buildFlags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "-ldflags="+ldflags(version), "-o", file, ".")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+architecture, "GOFLAGS=", "GOWORK=off")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s for %s: %w: %s", source, platform, err, said)
	}
	return nil
}

// compileInto is compile into a file of a directory, which it returns.
func compileInto(ctx context.Context, dir, source, platform, version string) (string, error) {
	file := filepath.Join(dir, strings.ReplaceAll(platform, "/", "-"))
	return file, compile(ctx, source, file, platform, version)
}

// operatorImages are the images of the operator; program makes the program of a platform.
func operatorImages(platforms []string, notices, version, revision string, program func(platform string) (string, error)) ([]Image, error) {
	var images []Image
	for _, platform := range platforms {
		file, err := program(platform)
		if err != nil {
			return nil, err
		}
		images = append(images, operatorImage(platform, file, notices, version, revision))
	}
	return images, nil
}

// operatorImage holds the operator and the licences of what it is built from.
func operatorImage(platform, program, notices, version, revision string) Image {
	return Image{
		Platform:   platform,
		Files:      []File{{Path: "/NOTICES", From: notices, Mode: 0o644}, {Path: operatorPath, From: program, Mode: 0o755}},
		Entrypoint: operatorPath,
		User:       operatorUser,
		Ports:      operatorPorts,
		Labels:     labels(version, revision),
	}
}
