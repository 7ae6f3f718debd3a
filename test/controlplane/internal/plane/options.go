package plane

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Options say which control plane to run.
type Options struct {
	Dir         string // data directory
	Bin         string // directory with the programs
	Version     string // of Kubernetes, for the fake nodes to report
	BindAddress string // where every server listens
	APIServers  int    // one or two, on one etcd
	Full        bool   // also controller-manager, scheduler and, with nodes, kwok
	Kwok        bool   // run kwok even if Nodes is 0
	Nodes       int    // fake nodes to create
	Audit       bool   // write an audit log per API server
	// Temporary deletes the data directory at the end; after a failure it keeps
	// the logs.
	Temporary bool
	// Args are additional flags by program, as "kube-apiserver=--v=4". They are last on the
	// command line, so they override the flags that this package chooses.
	Args []string

	Progress io.Writer // where start-up and failures are reported
}

// Validate returns an error if these options cannot be run.
func (o *Options) Validate() error {
	switch {
	case o.Dir == "":
		return fmt.Errorf("no data directory: name one with --dir")
	case net.ParseIP(o.BindAddress) == nil:
		return fmt.Errorf("bind address %q is not an IP address", o.BindAddress)
	case o.APIServers < 1 || o.APIServers > 2:
		return fmt.Errorf("%d API servers: there may be one or two", o.APIServers)
	case (o.Nodes > 0 || o.Kwok) && !o.Full:
		return fmt.Errorf("fake nodes need the full control plane: --control-plane=full")
	}
	for _, arg := range o.Args {
		program, flag, ok := strings.Cut(arg, "=")
		if !ok || !strings.HasPrefix(flag, "-") || !slices.Contains(programs, program) {
			return fmt.Errorf("argument %q is not PROGRAM=--flag with a PROGRAM of %s", arg, strings.Join(programs, ", "))
		}
	}
	return nil
}

// NeedPrograms reports a program that Bin lacks.
func (o *Options) NeedPrograms() error {
	needed := []string{"etcd", "kube-apiserver", "kubectl"}
	if o.Full {
		needed = append(needed, "kube-controller-manager", "kube-scheduler")
	}
	if o.Kwok || o.Nodes > 0 {
		needed = append(needed, "kwok")
	}
	for _, program := range needed {
		if _, err := os.Stat(filepath.Join(o.Bin, program)); err != nil {
			return fmt.Errorf("looking for %s, which this control plane needs: %w", program, err)
		}
	}
	return nil
}

// argsFor returns the additional flags of one program.
func (o *Options) argsFor(program string) []string {
	var flags []string
	for _, arg := range o.Args {
		if name, flag, _ := strings.Cut(arg, "="); name == program {
			flags = append(flags, flag)
		}
	}
	return flags
}

// url returns the URL of a server at the bind address.
func (o *Options) url(scheme string, port int) string {
	return scheme + "://" + net.JoinHostPort(o.BindAddress, fmt.Sprint(port))
}
