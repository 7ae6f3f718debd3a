package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/test/await"
)

// newSet returns a SidecarSet that adds a container of its own name to the Pods
// of the namespace with these labels.
func newSet(name, namespace string, labels map[string]string) *unstructured.Unstructured {
	matchLabels := map[string]any{}
	for key, value := range labels {
		matchLabels[key] = value
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": appsv1beta1.GroupVersion.String(), "kind": "SidecarSet",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"selector":          map[string]any{"matchLabels": matchLabels},
			"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": namespace}},
			"updateStrategy":    map[string]any{"type": "NotUpdate"},
			"volumes":           []any{map[string]any{"name": name, "emptyDir": map[string]any{}}},
			"containers": []any{map[string]any{
				"name": name, "image": "example.com/sidecar:v1", "podInjectPolicy": "AfterAppContainer",
				"env":          []any{map[string]any{"name": "LEVEL", "value": "info"}},
				"volumeMounts": []any{map[string]any{"name": name, "mountPath": "/var/log/sidecar"}},
				"resources":    map[string]any{"requests": map[string]any{"cpu": "10m", "memory": "32Mi"}},
			}},
		},
	}}
}

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

// applySidecarSet makes a patientSet, and deletes it after the test.
func applySidecarSet(t *testing.T, namespace, name string) {
	t.Helper()
	createSets(t, []*unstructured.Unstructured{patientSet(name, namespace)})
}

// patientSet returns a SidecarSet of newSet for Pods with its podLabels. API servers wait for
// its webhook as long as possible, so that a busy machine does not fail the test.
func patientSet(name, namespace string) *unstructured.Unstructured {
	set := newSet(name, namespace, podLabels(name))
	set.SetAnnotations(map[string]string{appsv1beta1.AnnotationTimeoutSeconds: fmt.Sprint(appsv1beta1.MaxTimeoutSeconds)})
	return set
}

// createSets creates SidecarSets, several at the same time, and deletes them after the test.
func createSets(t *testing.T, all []*unstructured.Unstructured) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := each(all, 16, func(set *unstructured.Unstructured) error { return deleteSet(ctx, set.GetName()) }); err != nil {
			t.Error(err)
		}
	})
	err := each(all, 16, func(set *unstructured.Unstructured) error {
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

// each calls do for every item, in at most parallel calls at the same time.
func each[T any](items []T, parallel int, do func(T) error) error {
	var workers sync.WaitGroup
	queue := make(chan T, len(items))
	for _, item := range items {
		queue <- item
	}
	close(queue)
	errs := make([]error, parallel)
	for i := range errs {
		workers.Go(func() {
			for item := range queue {
				errs[i] = errors.Join(errs[i], do(item))
			}
		})
	}
	workers.Wait()
	return errors.Join(errs...)
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
