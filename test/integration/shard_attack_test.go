package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/internal/selectors"
	"github.com/sidecarset/operator/test/testkit"
)

// An author of one namespace makes 55 SidecarSets whose selectors are as long as they may be, 800,000 bytes
// together, and all belong in the shard of an administrator's SidecarSet of another namespace, if the selectors alone
// name the shard. That shard takes 700,000 bytes. The administrator's SidecarSet becomes Ready nevertheless, and
// its Pods are injected: the UID of the operator's Namespace, which the author cannot choose, names the shard as well.
func TestNobodyFillsTheShardOfOthersOnPurpose(t *testing.T) {
	mine, theirs := testkit.Namespace(t, api, nil), testkit.Namespace(t, api, nil)
	victim := newSidecarSet(t, theirs, onlyHere("victim"))
	guessed := shardBySelectors(t, victim)
	var sets []*unstructured.Unstructured
	for i, bytes := 0, 0; len(sets) < 55; i++ {
		values := make([]string, selectors.MaxBytes/(63+2)-4)
		for at := range values {
			values[at] = fmt.Sprintf("attack-%d-%d-%s", i, at, strings.Repeat("x", 40))
		}
		set := newSidecarSet(t, mine, fmt.Sprintf("selector: {matchExpressions: [{key: app, operator: In, values: [%s]}]}\n%scontainers: [{name: side, image: \"example.com/side:v1\"}]\n",
			strings.Join(values, ", "), inNamespace))
		if shardBySelectors(t, set) == guessed {
			set.SetGenerateName("")
			set.SetName(fmt.Sprintf("%s-%d", mine, i))
			sets = append(sets, set)
			bytes += len(strings.Join(values, ""))
		}
		if len(sets) == 55 && bytes < 700_000 {
			t.Fatalf("they have %d bytes, which fill no shard", bytes)
		}
	}
	if err := testkit.Each(sets, 8, func(set *unstructured.Unstructured) error { return api.Create(t.Context(), set) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := testkit.Each(sets, 8, func(set *unstructured.Unstructured) error { return api.Delete(context.WithoutCancel(t.Context()), set) })
		if err != nil {
			t.Error(err)
		}
	})
	create(t, victim)
	t.Cleanup(func() { deleteSidecarSet(t, victim) })
	testkit.AwaitReady(t, api, victim.GetName())
	p := pod(theirs, "victim", "app=victim")
	create(t, p)
	if diff := cmp.Diff([]string{"side-victim", "app"}, testkit.ContainerNames(p.Spec.Containers)); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
}

// shardBySelectors is the shard that a user computes who does not know the UID of the operator's Namespace.
func shardBySelectors(t *testing.T, set *unstructured.Unstructured) int {
	t.Helper()
	typed, err := hub.Typed(set.Object)
	if err != nil {
		t.Fatal(err)
	}
	typed.Name = "any" // it has none yet
	e, err := podwebhook.Of(typed)
	if err != nil {
		t.Fatal(err)
	}
	return e.Shard("")
}
