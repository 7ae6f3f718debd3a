package plane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// Options say which control plane to run.
type Options struct {
	Dir        string // data directory: empty, or not there yet
	Bin        string // directory with the programs
	Version    string // of Kubernetes, for the fake nodes to report
	APIServers int    // one or two, on one etcd
	Full       bool   // also controller-manager, scheduler and, with nodes, kwok
	Kwok       bool   // run kwok even if Nodes is 0
	Nodes      int    // fake nodes to create
	Audit      bool   // write an audit log per API server
	// Temporary deletes the data directory at the end; after a failure it keeps
	// the logs.
	Temporary bool
	// Args are additional flags by program, as "kube-apiserver=--v=4". They are last on the
	// command line, so they override the flags that this package chooses.
	Args []string
}

// Validate returns an error if these options cannot be run.
func (o *Options) Validate() error {
	switch {
	case o.Dir == "":
		return errors.New("no data directory: name one with --dir")
	case o.APIServers < 1 || o.APIServers > 2:
		return fmt.Errorf("%d API servers: there may be one or two", o.APIServers)
	case (o.Nodes > 0 || o.Kwok) && !o.Full:
		return errors.New("fake nodes need the full control plane: --control-plane=full")
	}
	for _, arg := range o.Args {
		program, flag, ok := strings.Cut(arg, "=")
		if !ok || !strings.HasPrefix(flag, "-") || !slices.Contains(programs, program) {
			return fmt.Errorf("argument %q is not PROGRAM=--flag with a PROGRAM of %s", arg, strings.Join(programs, ", "))
		}
	}
	entries, err := os.ReadDir(o.Dir)
	if len(entries) > 0 {
		return fmt.Errorf("the data directory %s is not empty: name another one with --dir", o.Dir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
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
