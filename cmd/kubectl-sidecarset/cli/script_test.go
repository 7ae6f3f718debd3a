package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"kubectl-sidecarset": func() {
		os.Exit(Run(os.Args[1:], Streams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}, "test"))
	}})
}

func TestScripts(t *testing.T) {
	t.Parallel()
	samples, err := filepath.Abs("../../../config/samples")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{Dir: "testdata/script", UpdateScripts: updating(), Setup: func(e *testscript.Env) error {
		e.Setenv("SAMPLES", samples)
		e.Setenv("SOURCE_DATE_EPOCH", "1767225600")
		e.Setenv("NO_COLOR", "1")
		return nil
	}})
}
