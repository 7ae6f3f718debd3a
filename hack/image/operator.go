package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
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
