package clustertest

import (
	"strings"
	"testing"

	"github.com/sidecarset/operator/test/testkit"
)

func image(t *testing.T, name string) string {
	t.Helper()
	set, err := testkit.Get(t.Context(), api, name)
	if err != nil {
		t.Fatal(err)
	}
	return set.Spec.Containers[0].Image
}

func TestARolloutIsFollowedUndoneAndListed(t *testing.T) {
	t.Parallel()
	name := app(t, 4, "  updateStrategy: {maxUnavailable: 2}\n")

	wants(t, []string{"set", "image", name, "log-agent=example.com/log-agent:v2", "--dry-run=server"}, "sidecarset.apps.kruise.io/"+name+" image updated (server dry run)")
	wants(t, []string{"set", "image", name, "log-agent=example.com/log-agent:v2", "--dry-run=client"}, "-  - image: example.com/log-agent:v1\n+  - image: example.com/log-agent:v2\n", "image updated (dry run)")
	if got := image(t, name); got != "example.com/log-agent:v1" {
		t.Fatalf("a dry run has written %s", got)
	}
	wants(t, []string{"set", "image", "sidecarset/" + name, "log-agent=example.com/log-agent:v2"}, "sidecarset.apps.kruise.io/"+name+" image updated\n")
	wants(t, []string{"rollout", "status", name, "--timeout=3m"}, "successfully rolled out: All 4 matched Pods are updated.")
	awaitPods(t, name, 4)
	wants(t, []string{"set", "image", name, "log-agent=example.com/log-agent:v2"}, name+" unchanged\n")
	refuses(t, []string{"set", "image", name, "other=a:b"}, "has no container other; it has log-agent")

	listed := wants(t, []string{"rollout", "history", name}, "log-agent=example.com/log-agent:v1", "2 (current)", "log-agent=example.com/log-agent:v2")
	if lines := strings.Split(strings.TrimSpace(listed), "\n"); len(lines) != 4 || strings.Fields(lines[1])[0] != "1" {
		t.Errorf("history:\n%s", listed)
	}
	wants(t, []string{"rollout", "history", name, "--revision=1"}, "spec:\n  containers:\n", "- image: example.com/log-agent:v1\n")

	wants(t, []string{"rollout", "undo", name, "--to-revision=2"}, name+" unchanged\n")
	refuses(t, []string{"rollout", "undo", name, "--to-revision=7"}, "has no revision 7")
	wants(t, []string{"rollout", "undo", name, "--dry-run=server"}, "+  - image: example.com/log-agent:v1\n", "rolled back to revision 1", "(server dry run)")
	wants(t, []string{"rollout", "undo", name}, "rolled back to revision 1")
	if got := image(t, name); got != "example.com/log-agent:v1" {
		t.Fatalf("undo has written %s", got)
	}
	wants(t, []string{"rollout", "status", name, "--timeout=3m"}, "successfully rolled out")
	wants(t, []string{"rollout", "history", name}, "3 (current)")
}

func TestAPausedRolloutIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	name := app(t, 2, "")
	wants(t, []string{"rollout", "pause", name}, name+" paused; ")
	wants(t, []string{"rollout", "pause", name}, name+" unchanged\n")
	wants(t, []string{"set", "image", name, "log-agent=example.com/log-agent:v2"})
	refuses(t, []string{"rollout", "status", name, "--timeout=3m"}, "does not go on: Paused", "rollout resume "+name)
	refuses(t, []string{"rollout", "restart", name}, "no Pod of SidecarSet", "kubectl sidecarset rollout resume "+name)
	wants(t, []string{"rollout", "resume", name}, name+" resumed\n")
	wants(t, []string{"rollout", "status", name, "--timeout=3m"}, "successfully rolled out")
	awaitPods(t, name, 2)
}
