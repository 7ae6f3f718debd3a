// Package integration tests the operator on a real API server, over real TLS
// and, where a network namespace can be made, through its Service. Pods have no
// node here: nothing runs, and a test writes the status that a kubelet would.
package integration

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

var (
	cluster  *stand.Cluster
	operator *deploy.Operator
	replicas []*deploy.Replica
	api      client.WithWatch

	watchesBefore int // of Pods, before there was an operator

	identity apiServerIdentity

	conditions conditionRules
)

func TestMain(m *testing.M) {
	options := stand.Options{Namespace: true, Audit: true}
	if stand.Namespace() { // code before stand.Main runs outside the namespace as well
		var err error
		if identity, err = newAPIServerIdentity(); err != nil {
			fmt.Fprintln(os.Stderr, "integration:", err)
			os.Exit(1)
		}
		options.Args = identity.flags()
	}
	code := stand.Main(m, options, begin)
	_ = os.RemoveAll(identity.dir)
	if broken, statuses := conditions.result(); len(broken) > 0 {
		fmt.Fprintf(os.Stderr, "integration: of %d statuses, these break the rules for conditions:\n%s\n", statuses, strings.Join(broken, "\n"))
		code = max(code, 1)
	}
	os.Exit(code)
}

// inParallel is how many parallel tests run at once: they wait most of the time.
const inParallel = 16

// begin installs the operator, and checks the conditions of all SidecarSets from then on.
func begin(ctx context.Context, c *stand.Cluster) error {
	cluster = c
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = f.Value.Set(strconv.Itoa(inParallel))
	}
	var err error
	if api, err = testkit.NewClient(cluster); err != nil {
		return err
	}
	if watchesBefore, err = watchesOfPods(ctx); err != nil {
		return err
	}
	if err = installOperator(ctx); err != nil {
		return err
	}
	return conditions.follow(ctx, api)
}

// installOperator installs the operator that most tests use.
func installOperator(ctx context.Context) (err error) {
	if operator, err = deploy.Install(ctx, cluster); err != nil {
		return err
	}
	if replicas, err = operator.StartReplicas(ctx); err != nil {
		return err
	}
	return testkit.UntilCalled(ctx, api)
}

// serverMinor is the minor version of the API server.
func serverMinor(t *testing.T) (minor int) {
	t.Helper()
	version, err := operator.Clients.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if minor, err = strconv.Atoi(version.Minor); err != nil {
		t.Fatal(err)
	}
	return minor
}

// needServer skips a test that needs a newer API server.
func needServer(t *testing.T, minor int) {
	t.Helper()
	if is := serverMinor(t); is < minor {
		t.Skipf("SKIP: this needs an API server of 1.%d, and there is one of 1.%d", minor, is)
	}
}

func create(t *testing.T, object client.Object) {
	t.Helper()
	insist(t, func(ctx context.Context) error {
		if err := api.Create(ctx, object); err != nil {
			return fmt.Errorf("creating %T %s: %w", object, object.GetName(), err)
		}
		return nil
	})
}

// parse reads one object from YAML; every NS in it is replaced by namespace.
func parse(t *testing.T, manifest, namespace string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(manifest, "NS", namespace)), &object.Object); err != nil {
		t.Fatal(err)
	}
	return object
}

// createSidecarSet creates the SidecarSet that spec describes, for one namespace, and deletes
// it after the test. It returns when new Pods get its sidecars.
func createSidecarSet(t *testing.T, namespace, spec string) *unstructured.Unstructured {
	t.Helper()
	set := newSidecarSet(t, namespace, spec)
	create(t, set)
	t.Cleanup(func() { deleteSidecarSet(t, set) })
	testkit.AwaitObserved(t, api, set.GetName())
	if paused, _, _ := unstructured.NestedBool(set.Object, "spec", "injectionStrategy", "paused"); !paused {
		testkit.AwaitReady(t, api, set.GetName())
	}
	return set
}

// newSidecarSet returns a SidecarSet with that spec, named after the namespace. API servers
// wait for its webhook as long as possible, so that a busy machine does not fail the test. A Pod
// is proven as soon as it is Ready, so that rollouts are quick.
func newSidecarSet(t *testing.T, namespace, spec string) *unstructured.Unstructured {
	t.Helper()
	set := parse(t, spec, namespace)
	set.Object = map[string]any{"spec": set.Object}
	set.SetGroupVersionKind(appsv1beta1.Kind)
	set.SetGenerateName(namespace + "-")
	set.SetAnnotations(map[string]string{
		appsv1beta1.AnnotationTimeoutSeconds:  fmt.Sprint(appsv1beta1.MaxTimeoutSeconds),
		appsv1beta1.AnnotationMinReadySeconds: "0",
	})
	return set
}

func deleteSidecarSet(t *testing.T, set *unstructured.Unstructured) {
	t.Helper()
	if err := api.Delete(context.WithoutCancel(t.Context()), set); client.IgnoreNotFound(err) != nil {
		t.Errorf("deleting SidecarSet %s: %v", set.GetName(), err)
	}
}

// awaitInjected waits until every replica injects the SidecarSet into a Pod of the namespace
// with the labels, given as key=value.
func awaitInjected(t *testing.T, set *unstructured.Unstructured, namespace string, labels ...string) {
	t.Helper()
	for _, replica := range replicas {
		await.Eventually(t, "a snapshot that selects the Pod", func(ctx context.Context) error {
			return replica.Injects(ctx, set.GetName(), namespace, pod(namespace, "", labels...).Labels)
		})
	}
}

// pod returns a Pod with one container, app.
func pod(namespace, name string, labels ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "app", Image: "example.com/app:v1",
			Env: []corev1.EnvVar{{Name: "A", Value: "1"}},
		}}},
	}
	for _, label := range labels {
		key, value, _ := strings.Cut(label, "=")
		p.Labels[key] = value
	}
	return p
}
