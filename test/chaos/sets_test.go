package chaos

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// warningHandler handles warnings. On a busy machine, an author may be warned that API servers may
// not use an entry yet. It notes this warning for create, and drops all others.
type warningHandler struct{}

// notInForce is a part of the warning, which clients show in different forms.
const notInForce = "not in force yet"

func (warningHandler) HandleWarningHeaderWithContext(ctx context.Context, _ int, _ string, text string) {
	if warned, ok := ctx.Value(warningHandler{}).(*atomic.Bool); ok && strings.Contains(text, notInForce) {
		warned.Store(true)
	}
}

// create creates a SidecarSet, and says whether there was a warning that Pods may be missed
// until the SidecarSet is Ready.
func create(ctx context.Context, client dynamic.ResourceInterface, set *unstructured.Unstructured) (warned bool, err error) {
	var noted atomic.Bool
	for begin := time.Now(); ; <-time.After(time.Second) { // on a busy machine, a replica asks to try again
		_, err = client.Create(context.WithValue(ctx, warningHandler{}, &noted), set, metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "try again") || time.Since(begin) > await.Patience {
			return noted.Load(), err
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
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := testkit.Each(all, 16, func(set *unstructured.Unstructured) error { return deleteSet(ctx, set.GetName()) }); err != nil {
			t.Error(err)
		}
	})
	err := testkit.Each(all, 16, func(set *unstructured.Unstructured) error {
		_, err := sets[0].Create(t.Context(), set, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// deleteSet deletes a SidecarSet if there is one.
func deleteSet(ctx context.Context, name string) error {
	err := sets[0].Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// changeImage changes what a SidecarSet injects, and so its generation.
func changeImage(ctx context.Context, sidecarSet, image string) error {
	patch := fmt.Sprintf(`[{"op": "replace", "path": "/spec/containers/0/image", "value": %q}]`, image)
	_, err := sets[0].Patch(ctx, sidecarSet, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// mustChangeImage is changeImage, and tries again if it fails.
func mustChangeImage(t *testing.T, sidecarSet, image string) {
	t.Helper()
	await.Eventually(t, "a change of SidecarSet "+sidecarSet, func(ctx context.Context) error {
		return changeImage(ctx, sidecarSet, image)
	})
}

// settled returns an error that names an entry on the fresh path; nil if there is none.
func settled(ctx context.Context) error {
	configurations, err := clients[0].AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, configuration := range configurations.Items {
		for _, webhook := range configuration.Webhooks {
			if service := webhook.ClientConfig.Service; service != nil && service.Path != nil && *service.Path == entryplan.PathPodsFresh {
				return fmt.Errorf("entry %s of %s is on %s", webhook.Name, configuration.Name, *service.Path)
			}
		}
	}
	return nil
}

// awaitSettled waits until all entries have settled, so replicas need no live look-ups. With
// the longest trust of a test, this takes a minute.
func awaitSettled(t *testing.T) {
	t.Helper()
	await.Within(t, 2*await.Patience, "entries without a live look-up", settled)
}
