package plane

import (
	"os"
	"strings"
	"testing"

	"github.com/sidecarset/operator/test/controlplane/internal/pki"
)

// A stand on a developer's machine may not be reached from other machines.
func TestEveryServerListensAtTheBindAddress(t *testing.T) {
	authority, err := pki.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o, f := Options{BindAddress: "127.0.0.9", Full: true}, files{dir: "/data", authority: authority}
	for _, c := range []component{etcd(&o, f), apiServer(&o, f, "a", ""), controllerManager(&o, f), scheduler(&o, f), kwok(&o, f)} {
		all := strings.Join(c.flags([]int{7001, 7002}[:c.ports]), " ")
		if !strings.Contains(all, "127.0.0.9") || strings.Contains(all, "127.0.0.1") || strings.Contains(all, "0.0.0.0") {
			t.Errorf("%s has the flags %s", c.name, all)
		}
	}
}

func TestDownLeavesAForeignProcessAlone(t *testing.T) {
	dir := t.TempDir()
	lock, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	// If Down took this process for the stand, it would end the test.
	if err := (&Info{Dir: dir, Pid: os.Getpid(), StartTime: "1"}).write(); err != nil {
		t.Fatal(err)
	}
	if err := Down(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "not the stand") {
		t.Errorf("Down = %v", err)
	}
}

func TestDeleteRefusesWhatIsNoStand(t *testing.T) {
	if err := Delete(t.TempDir()); err == nil {
		t.Error("a directory without a stand was deleted")
	}
}
