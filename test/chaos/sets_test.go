package chaos

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// warningHandler handles warnings. On a busy machine, a user may be warned that API servers may
// not use a webhook yet. It notes this warning for create, and drops all others.
type warningHandler struct{}

// notReadyYet is a part of the warning, which clients show in different forms.
const notReadyYet = "not Ready yet"

func (warningHandler) HandleWarningHeaderWithContext(ctx context.Context, _ int, _ string, text string) {
	if warned, ok := ctx.Value(warningHandler{}).(*atomic.Bool); ok && strings.Contains(text, notReadyYet) {
		warned.Store(true)
	}
}

// creation is how the creation of a SidecarSet went.
type creation struct {
	warned bool // that Pods may be missed until it is Ready
	took   time.Duration
}

// mayMiss reports whether Pods before Ready may be missed: there was a warning, or the SidecarSet
// may have been stored so late that the leader had removed its webhook.
func (c creation) mayMiss() bool { return c.warned || c.took >= podwebhook.StoredSoon }

// create creates a SidecarSet, and deletes it after the test.
func create(t *testing.T, through dynamic.ResourceInterface, set *unstructured.Unstructured) (creation, error) {
	t.Helper()
	deleteAfter(t, set.GetName())
	var noted atomic.Bool
	for begin := time.Now(); ; <-time.After(time.Second) { // on a busy machine, a replica asks to try again
		sent := time.Now()
		_, err := through.Create(context.WithValue(t.Context(), warningHandler{}, &noted), set, metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "try again") || time.Since(begin) > await.Patience {
			return creation{noted.Load(), time.Since(sent)}, err
		}
	}
}

// applySidecarSet makes a NewPatientSet, and deletes it after the test.
func applySidecarSet(t *testing.T, namespace, name string) {
	t.Helper()
	createSets(t, []*unstructured.Unstructured{testkit.NewPatientSet(name, namespace)})
}

// createSets creates SidecarSets, several at the same time, and deletes them after the test.
func createSets(t *testing.T, all []*unstructured.Unstructured) {
	t.Helper()
	for _, set := range all {
		deleteAfter(t, set.GetName())
	}
	err := testkit.Each(all, 16, func(set *unstructured.Unstructured) error {
		_, err := sets[0].Create(t.Context(), set, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// deleteAfter deletes a SidecarSet, if there is one, after the test.
func deleteAfter(t *testing.T, name string) {
	t.Helper()
	t.Cleanup(func() {
		if err := sets[0].Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
}

// mustChangeImage changes what a SidecarSet injects, and so its generation. It tries again if that fails.
func mustChangeImage(t *testing.T, sidecarSet, image string) {
	t.Helper()
	await.Eventually(t, "a change of SidecarSet "+sidecarSet, func(ctx context.Context) error {
		patch := fmt.Sprintf(`[{"op": "replace", "path": "/spec/containers/0/image", "value": %q}]`, image)
		_, err := sets[0].Patch(ctx, sidecarSet, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
		return err
	})
}
