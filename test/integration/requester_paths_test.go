package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
)

// checkDetours tries changes that once passed the requester check, because they change neither
// containers nor selectors.
func checkDetours(t *testing.T, own *installation) {
	const anywhere = "selector: {matchLabels: {app: mandatory}}\nupdateStrategy: {type: NotUpdate}\ncontainers: [{name: monitor, image: \"example.com/monitor:v1\"}]\n"
	own.store(t, "mandatory", anywhere)

	t.Run("a canary of a SidecarSet that its author may not update", func(t *testing.T) {
		author := own.ownerOf(t, "canary-author", "mine")
		canary := func(name string) *unstructured.Unstructured {
			set := newSidecarSet(t, "default", strings.Replace(anywhere, "name: monitor", "name: "+name, 1)+inNamespace)
			set.SetGenerateName("")
			set.SetName(name)
			set.SetAnnotations(map[string]string{appsv1beta1.AnnotationCanary: "true", appsv1beta1.AnnotationBase: "mandatory"})
			return set
		}
		lacks := `may not update SidecarSet mandatory, which this canary replaces in Pods`
		expectForbidden(t, author.Create(t.Context(), canary("mine"), client.DryRunAll), lacks)

		// The author tries it in two steps. The first step is allowed.
		plain := canary("mine")
		plain.SetAnnotations(map[string]string{appsv1beta1.AnnotationBase: "mandatory"})
		plain.SetFinalizers([]string{"example.com/hold"})
		if err := author.Create(t.Context(), plain); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { own.remove(t, plain) })
		becomeCanary := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"apps.kruise.io/sidecarset-canary":"true"}}}`))
		expectForbidden(t, author.Patch(t.Context(), plain.DeepCopy(), becomeCanary), lacks)
		// It is also refused while the SidecarSet waits for a finalizer, because replicas inject
		// a SidecarSet until it is gone.
		if err := own.api.Delete(t.Context(), plain.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		expectForbidden(t, author.Patch(t.Context(), plain.DeepCopy(), becomeCanary), lacks)

		own.ownerOf(t, author.name, "mandatory")
		await.Eventually(t, "a canary by a user who may update its base", func(ctx context.Context) error {
			return author.Create(ctx, canary("granted"), client.DryRunAll)
		})
	})

	t.Run("what chooses the revision", func(t *testing.T) {
		const strategy = "updateStrategy: {type: NotUpdate, partition: \"0%\"}\n"
		pp := own.store(t, "pp", strategy+"customVersion: v1\n"+privilegedSpec+inNamespace)
		own.awaitRevision(t, "pp", "v1")
		own.change(t, pp, `{"spec":{"customVersion":"v2","containers":[{"name":"side","image":"example.com/side:v2"}]}}`)
		own.awaitRevision(t, "pp", "v2")
		own.change(t, pp, `{"spec":{"injectionStrategy":{"revision":{"customVersion":"v1","policy":"Partial"}}}}`)
		author := newUser(t, own.cluster, own.api, "roller", "default/system:aggregate-to-edit")
		for _, body := range []string{
			`{"spec":{"updateStrategy":{"partition":"100%"}}}`,
			`{"spec":{"updateStrategy":{"selector":{"matchLabels":{"no":"pod"}}}}}`,
			`{"spec":{"updateStrategy":{"paused":true}}}`,
			`{"spec":{"customVersion":"v1"}}`,
			`{"metadata":{"labels":{"apps.kruise.io/sidecarset-custom-version":"v1"}}}`,
		} {
			err := author.Patch(t.Context(), pp.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(body)), client.DryRunAll)
			expectForbidden(t, err, "may not use spec.containers[0].securityContext.privileged of revision pp-")
		}
		free := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"updateStrategy":{"maxUnavailable":3},"revisionHistoryLimit":2,"injectionStrategy":{"paused":true}}}`))
		if err := author.Patch(t.Context(), pp.DeepCopy(), free, client.DryRunAll); err != nil {
			t.Errorf("what decides about no new Pod: %v", err)
		}
	})

	t.Run("what was paused", func(t *testing.T) {
		paused := own.store(t, "paused", "injectionStrategy: {paused: true}\n"+privilegedSpec+inNamespace)
		author := newUser(t, own.cluster, own.api, "resumer", "default/system:aggregate-to-edit")
		resume := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"injectionStrategy":{"paused":false}}}`))
		expectForbidden(t, author.Patch(t.Context(), paused.DeepCopy(), resume, client.DryRunAll), "may not use spec.containers[0].securityContext.privileged")
	})
}

// ownerOf returns a user who may create SidecarSets, update one of them, and create Pods in
// the namespace default.
func (i *installation) ownerOf(t *testing.T, name, owned string) *user {
	t.Helper()
	all := rbacv1.PolicyRule{APIGroups: []string{appsv1beta1.Resource.Group}, Resources: []string{appsv1beta1.Resource.Resource}, Verbs: []string{"create"}}
	one := all
	one.ResourceNames, one.Verbs = []string{owned}, []string{"update", "patch"}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "owner-of-" + owned}, Rules: []rbacv1.PolicyRule{all, one}}
	if err := i.api.Create(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = i.api.Delete(context.WithoutCancel(t.Context()), role) })
	bind(t, i.api, name, role.Name, "default/system:aggregate-to-edit")
	return newClient(t, i.cluster, i.api, name, "default/system:aggregate-to-edit")
}

func expectForbidden(t *testing.T, err error, lacks string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), lacks) {
		t.Errorf("got %v, want a 403 that says %q", err, lacks)
	}
}

// store creates a SidecarSet as the administrator, and deletes it after the test.
func (i *installation) store(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	set := newSidecarSet(t, "default", spec)
	set.SetGenerateName("")
	set.SetName(name)
	if err := i.api.Create(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.remove(t, set) })
	return set
}

func (i *installation) change(t *testing.T, set *unstructured.Unstructured, body string) {
	t.Helper()
	if err := i.api.Patch(t.Context(), set.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(body))); err != nil {
		t.Fatal(err)
	}
}

func (i *installation) remove(t *testing.T, set *unstructured.Unstructured) {
	ctx := context.WithoutCancel(t.Context())
	_ = i.api.Delete(ctx, set.DeepCopy())
	_ = i.api.Patch(ctx, set.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
}

// awaitRevision waits until content of a custom version is recorded.
func (i *installation) awaitRevision(t *testing.T, set, version string) {
	t.Helper()
	await.Eventually(t, "revision "+version+" of "+set, func(ctx context.Context) error {
		var list appsv1.ControllerRevisionList
		err := i.api.List(ctx, &list, client.InNamespace(deploy.Namespace), client.MatchingLabels{
			appsv1beta1.LabelSidecarSetName: set, appsv1beta1.LabelCustomVersion: version,
		})
		if err == nil && len(list.Items) == 0 {
			return fmt.Errorf("it is not recorded")
		}
		return err
	})
}
