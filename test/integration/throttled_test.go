package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// A replica with a CPU limit of 100m is the only one. It becomes ready, leads, and injects waves of
// Pods that take more CPU than it gets. It answers each probe that
// it is ready, although it is slow.
func TestAReplicaWithLittleCPU(t *testing.T) {
	i := installApart(t, deploy.Default)
	limit := newCPULimit(t, 100)
	i.Amend = limit.apply
	begin := time.Now()
	replica := i.start(t, 20)
	t.Logf("ready after %v; %s", time.Since(begin), limit.stat())
	testkit.AwaitCalled(t, i.api)
	set := newSidecarSet(t, "default", onlyHere("throttled"))
	if err := i.api.Create(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	testkit.AwaitReady(t, i.api, set.GetName())

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var probes sync.WaitGroup
	probes.Go(func() { staysReady(ctx, t, replica) })
	for range 3 {
		var pods sync.WaitGroup
		for range 40 {
			pods.Go(func() { isInjected(t, i.api) })
		}
		pods.Wait()
	}
	stop()
	probes.Wait()
	t.Logf("done after %v; %s", time.Since(begin), limit.stat())
}

// isInjected creates a Pod under dry-run. If a replica is too slow to answer, it tries again, as
// controllers do.
func isInjected(t *testing.T, api client.Client) {
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	err := await.Until(ctx, func(ctx context.Context) error {
		p := pod("default", "throttled", "app=throttled")
		if err := api.Create(ctx, p, client.DryRunAll); err != nil {
			return err
		}
		if len(p.Spec.Containers) != 2 {
			t.Errorf("a Pod has the containers %v", testkit.ContainerNames(p.Spec.Containers))
		}
		return nil
	})
	if err != nil {
		t.Errorf("creating a Pod: %v", err)
	}
}

// staysReady asks for readiness until ctx ends.
func staysReady(ctx context.Context, t *testing.T, replica *deploy.Replica) {
	asked, slowest := 0, time.Duration(0)
	for ; ctx.Err() == nil; asked++ {
		begin := time.Now()
		code, says, err := replica.Readyz(t.Context(), "?verbose")
		slowest = max(slowest, time.Since(begin))
		if err == nil && code != http.StatusOK {
			t.Errorf("/readyz: %d %s", code, says)
		}
		select {
		case <-ctx.Done():
		case <-time.After(300 * time.Millisecond):
		}
	}
	t.Logf("readiness: %d answers, the slowest after %v", asked, slowest)
}

// cpuLimit is a cgroup with a limit of CPU, as a kubelet makes it for a container.
type cpuLimit struct{ dir string }

// newCPULimit makes a cgroup with a limit in thousandths of a CPU. It skips the test where that
// is not possible.
func newCPULimit(t *testing.T, milli int) cpuLimit {
	t.Helper()
	parent, unified, err := cpuHierarchy()
	if err != nil {
		t.Skip("SKIP: a limit of CPU needs a cgroup, which cannot be made here:", err)
	}
	l := cpuLimit{filepath.Join(parent, fmt.Sprintf("sidecarset-test-%d", os.Getpid()))}
	if err := os.Mkdir(l.dir, 0o755); err != nil {
		t.Skip("SKIP: a limit of CPU needs a cgroup, which cannot be made here:", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(l.dir); err != nil {
			t.Error(err)
		}
	})
	const period = 100_000 // microseconds, as kubelets have it
	quota := milli * period / 1000
	files := map[string]string{"cpu.cfs_quota_us": fmt.Sprint(quota)} // the period is 100 ms by default
	if unified {
		files = map[string]string{"cpu.max": fmt.Sprint(quota, " ", period)}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(l.dir, name), []byte(content), 0o644); err != nil {
			t.Skip("SKIP: a cgroup cannot have a limit of CPU here:", err)
		}
	}
	return l
}

// cpuHierarchy returns where cgroups that limit CPU are made, and whether that is version 2.
func cpuHierarchy() (dir string, unified bool, err error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", false, err
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) < 4:
		case fields[2] == "cgroup" && slices.Contains(strings.Split(fields[3], ","), "cpu"):
			return fields[1], false, nil
		case fields[2] == "cgroup2":
			if os.WriteFile(filepath.Join(fields[1], "cgroup.subtree_control"), []byte("+cpu"), 0o644) == nil {
				return fields[1], true, nil
			}
		}
	}
	return "", false, errors.New("there is no hierarchy for the controller cpu that this user may change")
}

// apply makes a command start in the cgroup.
func (l cpuLimit) apply(c *stand.Command) {
	c.Args = append([]string{"-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, l.dir, c.Path}, c.Args...)
	c.Path = "/bin/sh"
}

// stat says how many periods of 100 ms there were, and in how many the processes had to wait.
func (l cpuLimit) stat() string {
	text, err := os.ReadFile(filepath.Join(l.dir, "cpu.stat"))
	if err != nil {
		return err.Error()
	}
	return strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", ", ")
}
