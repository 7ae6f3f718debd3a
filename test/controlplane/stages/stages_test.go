package stages

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

func TestExpandIndentsTheFragment(t *testing.T) {
	got, err := expand("key: |\n    # include: jq\n    true\n")
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(strings.TrimRight(got, "\n"), "\n") {
		if i > 0 && !strings.HasPrefix(line, "    ") {
			t.Errorf("line %d is not indented as the include line was: %q", i+1, line)
		}
	}
	if !strings.HasSuffix(got, "\n    true\n") || !strings.Contains(got, "    def pairs:") {
		t.Errorf("the fragment is not where it was asked for:\n%s", got)
	}
}

func TestExpandRefusesAnUnknownFragment(t *testing.T) {
	if got, err := expand("# include: nothing\n"); err == nil {
		t.Errorf("expanded to %q", got)
	}
}

func TestConfigIsComplete(t *testing.T) {
	config, err := Config()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(config, includeMark) {
		t.Error("an include line is left")
	}
	for _, stage := range []string{
		"node-initialize", "node-heartbeat",
		"pod-start", "pod-sync", "pod-stop-container", "pod-replace-container", "pod-start-container", "pod-observe", "pod-break", "pod-complete", "pod-delete",
	} {
		if !strings.Contains(config, "\n  name: "+stage+"\n") {
			t.Errorf("there is no stage %s", stage)
		}
	}
}

func TestEveryFileIsUsed(t *testing.T) {
	var all strings.Builder
	yamls, err := fs.Glob(files, "*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config, err := Config()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range yamls {
		text, err := files.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
		first, _, _ := strings.Cut(string(text), "\n")
		if !strings.Contains(config, first) {
			t.Errorf("%s is not part of the configuration", name)
		}
	}
	fragments, err := fs.Glob(files, "include/*.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range fragments {
		name := strings.TrimSuffix(filepath.Base(path), ".tmpl")
		if !strings.Contains(all.String(), includeMark+name+"\n") {
			t.Errorf("nothing includes %s", path)
		}
	}
}
