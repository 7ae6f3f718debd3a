// Package deploy installs the operator on a stand from config/, as an administrator does. Its
// replicas are processes that have only the rights of the operator's ServiceAccount. Only
// tests import it.
//
// Inside a network namespace of the stand, the API server reaches the replicas as in
// production: through the Service, whose endpoints this package writes. Elsewhere there is
// one replica, which the API server calls by URL on loopback.
package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/manifests"
	"github.com/sidecarset/operator/test/stand"
)

// The names in config/.
const (
	Namespace      = "sidecarset-system"
	ServiceAccount = "sidecarset-operator"
	Service        = "sidecarset-webhook"
	CertSecret     = "sidecarset-webhook-certs"
	Lease          = "sidecarset-operator"

	MutatingConfiguration   = "sidecarset-mutating-webhook"
	ValidatingConfiguration = "sidecarset-validating-webhook"
	CRD                     = "sidecarsets.apps.kruise.io"
)

// portOfURL is the beginning of the URLs of test/overlays/demo. InstallProfile puts the
// port of the one replica into it.
const portOfURL = "https://127.0.0.1:9443/"

// Operator is an installation on one cluster.
type Operator struct {
	Cluster *stand.Cluster
	Clients kubernetes.Interface // as the administrator
	// Amend, if set, changes how a replica is started: by another program, or in another environment.
	Amend func(*stand.Command)

	profile   Profile
	manifests string // what was applied
	port      int    // of the one replica that is called by URL; 0 if the Service is used

	mu        sync.Mutex
	endpoints map[int]bool // numbers of the replicas behind the Service
}

// Root is the directory of the checkout: the nearest one above the test that
// holds config/default.
func Root() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "config", "default")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			panic("not inside of the checkout")
		}
		dir = parent
	}
}

// Install applies config/default and makes the credentials that replicas use. From then on, API
// servers call the webhooks, so SidecarSets and Pods are refused until a replica runs.
func Install(ctx context.Context, c *stand.Cluster) (*Operator, error) {
	return InstallProfile(ctx, c, Default)
}

// InstallProfile is Install for another profile. A profile whose replicas cannot be called by URL
// needs a network namespace.
func InstallProfile(ctx context.Context, c *stand.Cluster, profile Profile) (*Operator, error) {
	o := &Operator{Cluster: c, profile: profile}
	overlay := profile.overlay
	if !stand.Namespace() {
		overlay = "demo"
		ports, err := stand.FreePorts(ctx, 1)
		if err != nil {
			return nil, err
		}
		o.port = ports[0]
	}
	text, err := manifests.Build(filepath.Join(Root(), "test/overlays", overlay))
	if err != nil {
		return nil, err
	}
	o.manifests = strings.ReplaceAll(text, portOfURL, fmt.Sprintf("https://127.0.0.1:%d/", o.port))
	// kubectl itself would take half a second of a processor.
	err = o.each(func(api client.Client, object *unstructured.Unstructured) error {
		text, err := json.Marshal(object)
		if err != nil {
			return err
		}
		options := &client.PatchOptions{FieldManager: "kubectl", Force: new(true), FieldValidation: metav1.FieldValidationStrict}
		return api.Patch(ctx, object, client.RawPatch(types.ApplyPatchType, text), options)
	})
	if err != nil {
		return nil, fmt.Errorf("applying %w", err)
	}
	return o, o.begin(ctx)
}

// Adopt is InstallProfile for what the caller has installed, with Deployments whose Pods do not run. It needs a network namespace.
func Adopt(ctx context.Context, c *stand.Cluster, profile Profile) (*Operator, error) {
	o := &Operator{Cluster: c, profile: profile}
	return o, o.begin(ctx)
}

// begin makes the credentials that replicas use.
func (o *Operator) begin(ctx context.Context) (err error) {
	o.endpoints = map[int]bool{}
	if o.Clients, err = kubernetes.NewForConfig(o.Cluster.Config()); err != nil {
		return err
	}
	if err := o.untilServed(ctx); err != nil {
		return err
	}
	for _, account := range slices.Compact(slices.Sorted(maps.Values(o.profile.accounts))) {
		if err := o.writeKubeconfig(ctx, account); err != nil {
			return fmt.Errorf("making the credentials of %s: %w", account, err)
		}
	}
	return nil
}

// each calls do with each object of the manifests, and a client of the administrator.
func (o *Operator) each(do func(client.Client, *unstructured.Unstructured) error) error {
	api, err := client.New(o.Cluster.Config(), client.Options{})
	if err != nil {
		return err
	}
	for decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(o.manifests), 4096); ; {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := do(api, object); err != nil {
			return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
}

// untilServed waits until the API server serves SidecarSets.
func (o *Operator) untilServed(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, await.Patience)
	defer cancel()
	return await.Until(ctx, func(context.Context) error {
		_, err := o.Clients.Discovery().ServerResourcesForGroupVersion(appsv1beta1.GroupVersion.String())
		return err
	})
}

// kubeconfig is the file with the credentials of a ServiceAccount.
func (o *Operator) kubeconfig(account string) string {
	return filepath.Join(o.Cluster.Dir, account+".kubeconfig")
}

// writeKubeconfig makes a kubeconfig with a token of a ServiceAccount.
func (o *Operator) writeKubeconfig(ctx context.Context, account string) error {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(86400))}}
	token, err := o.Clients.CoreV1().ServiceAccounts(Namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	config, err := clientcmd.LoadFromFile(o.Cluster.Kubeconfig)
	if err != nil {
		return err
	}
	config.AuthInfos["operator"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts[config.CurrentContext].AuthInfo = "operator"
	return clientcmd.WriteToFile(*config, o.kubeconfig(account))
}

// Replica is one process of the operator.
type Replica struct {
	*stand.Process
	Number  int
	Webhook string // host:port of its webhook server
	Probes  string // URL of its probes
	Metrics string // URL of its metrics server

	operator *Operator
}

// NeedReplicas skips the test if only one replica can be called.
func (o *Operator) NeedReplicas(t testing.TB) {
	t.Helper()
	if o.port != 0 {
		t.Skip("SKIP: several replicas behind a Service need a network namespace, which cannot be made here")
	}
}

// StartReplica starts the number-th replica (from 1), waits until it is ready, and makes it an
// endpoint of the Service. The caller must Stop it. args are additional flags.
func (o *Operator) StartReplica(ctx context.Context, number int, args ...string) (*Replica, error) {
	replica, err := o.StartReplicaUnready(ctx, number, args...)
	if err != nil {
		return nil, err
	}
	return replica, errors.Join(replica.AwaitReady(ctx), o.AddEndpoint(ctx, replica))
}

// StartReplicas starts two replicas, or one if only one can be called, and waits until they are
// ready. They start at the same time, so that they race for the certificate's Secret. They are
// stopped before the cluster.
func (o *Operator) StartReplicas(ctx context.Context) ([]*Replica, error) {
	count := 1
	if stand.Namespace() {
		count = 2
	}
	var replicas []*Replica
	for number := range count {
		replica, err := o.StartReplicaUnready(ctx, number+1)
		if err != nil {
			return nil, err
		}
		o.Cluster.BeforeStop(replica.Process.Stop)
		replicas = append(replicas, replica)
	}
	for _, replica := range replicas {
		if err := errors.Join(replica.AwaitReady(ctx), o.AddEndpoint(ctx, replica)); err != nil {
			return nil, err
		}
	}
	return replicas, nil
}

// leases are the flags of each replica for its Lease. A leader that cannot renew it ends, and no
// kubelet starts it again here: the times are long enough for a busy machine.
var leases = []string{"--leader-elect-lease-duration=60s", "--leader-elect-renew-deadline=50s", "--leader-elect-retry-period=500ms"}

// StartReplicaUnready starts a replica and does not wait until it is ready. API servers do not call it.
func (o *Operator) StartReplicaUnready(ctx context.Context, number int, args ...string) (*Replica, error) {
	webhook, probes, metrics, err := o.addresses(ctx, number)
	if err != nil {
		return nil, err
	}
	replica := &Replica{Number: number, Webhook: webhook, Probes: "http://" + probes, Metrics: "https://" + metrics, operator: o}
	if o.port != 0 {
		args = append([]string{"--pod-webhook-url=https://" + webhook}, args...)
	}
	args = slices.Concat(o.profile.flags(), args)
	program, err := Program()
	if err != nil {
		return nil, err
	}
	command := stand.Command{
		Name: fmt.Sprintf("operator-%d", number),
		Path: program,
		Args: append([]string{
			"--kubeconfig=" + o.kubeconfig(o.profile.account(args)),
			"--namespace=" + Namespace,
			"--webhook-bind-address=" + webhook,
			"--webhook-san=127.0.0.1",
			"--health-probe-bind-address=" + probes,
			"--metrics-bind-address=" + metrics,
			"--drain-grace=1s",
		}, slices.Concat(leases, args)...),
		Env:    []string{"GOGC=50", "GOMEMLIMIT=896MiB"}, // as in config/manager
		LogDir: filepath.Join(o.Cluster.Dir, "logs"),
	}
	if o.Amend != nil {
		o.Amend(&command)
	}
	if replica.Process, err = stand.StartProcess(ctx, command); err != nil {
		return nil, err
	}
	return replica, nil
}

// StartApart starts a replica without an endpoint. It stops with the test, which fails if the replica
// has panicked.
func (o *Operator) StartApart(t testing.TB, number int, args ...string) *Replica {
	t.Helper()
	replica, err := o.StartReplicaUnready(t.Context(), number, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := replica.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		replica.CheckLog(t)
	})
	return replica
}

// StartSpare is StartApart, and waits until the replica is ready.
func (o *Operator) StartSpare(t testing.TB, args ...string) *Replica {
	t.Helper()
	replica := o.StartApart(t, 3, args...)
	if err := replica.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return replica
}

// CheckLog fails the test if the replica has panicked, and shows the end of its log if the test
// has failed.
func (r *Replica) CheckLog(t testing.TB) {
	t.Helper()
	for _, sign := range []string{"panic: ", "Observed a panic", "panic serving", "fatal error: "} {
		if strings.Contains(r.Log(), sign) {
			t.Errorf("%s panicked:\n%s", r.Name, r.Log())
		}
	}
	if t.Failed() {
		t.Logf("the end of the log of %s:\n%s", r.Name, r.Tail(30))
	}
}

// addresses returns where the number-th replica listens. In a network namespace each replica
// has an IP address of its own, as a Pod has, so its ports are those of production. Outside, it
// chooses ports that are free now; another process may take one before the replica does.
func (o *Operator) addresses(ctx context.Context, number int) (webhook, probes, metrics string, err error) {
	if o.port == 0 {
		ip := stand.Address(number + 1)
		return ip + ":9443", ip + ":8081", ip + ":8443", nil
	}
	ports, err := stand.FreePorts(ctx, 2)
	if err != nil {
		return "", "", "", err
	}
	local := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
	return local(o.port), local(ports[0]), local(ports[1]), nil
}

// Stop removes the replica's endpoints and stops it, as a rolling update does.
func (r *Replica) Stop(ctx context.Context) error {
	err := r.operator.RemoveEndpoint(ctx, r)
	r.Process.Stop()
	return err
}

// Bundle returns the CA bundle in the mutating webhook configuration for SidecarSets.
func (o *Operator) Bundle(ctx context.Context) ([]byte, error) {
	configuration, err := o.Clients.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, MutatingConfiguration, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if len(configuration.Webhooks) == 0 {
		return nil, fmt.Errorf("%s has no webhooks", MutatingConfiguration)
	}
	return configuration.Webhooks[0].ClientConfig.CABundle, nil
}

// AddEndpoint adds the replica to the endpoints of the webhooks' Service.
func (o *Operator) AddEndpoint(ctx context.Context, r *Replica) error {
	return o.setEndpoint(ctx, r.Number, true)
}

// RemoveEndpoint removes the replica from the endpoints of the webhooks' Service.
func (o *Operator) RemoveEndpoint(ctx context.Context, r *Replica) error {
	return o.setEndpoint(ctx, r.Number, false)
}

// setEndpoint writes the EndpointSlice of the Service, as Kubernetes' controller does for Pods.
func (o *Operator) setEndpoint(ctx context.Context, number int, present bool) error {
	if o.port != 0 {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if present {
		o.endpoints[number] = true
	} else {
		delete(o.endpoints, number)
	}
	slice := discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: Namespace,
			Name:      Service + "-replicas",
			Labels:    map[string]string{discoveryv1.LabelServiceName: Service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("webhook"), Port: new(int32(9443)), Protocol: new(corev1.ProtocolTCP)}},
		Endpoints:   []discoveryv1.Endpoint{},
	}
	for number := range o.endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{stand.Address(number + 1)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		})
	}
	// Without kubectl: on a busy machine, kubectl takes longer to start than replicas to drain.
	force := metav1.PatchOptions{FieldManager: "deploy", Force: new(true)}
	body, err := json.Marshal(slice)
	if err != nil {
		return err
	}
	if _, err := o.Clients.DiscoveryV1().EndpointSlices(Namespace).Patch(ctx, slice.Name, types.ApplyPatchType, body, force); err != nil {
		return err
	}
	if o.Cluster.Minor() >= 34 {
		return nil
	}
	if body, err = json.Marshal(endpointsOf(&slice)); err != nil {
		return err
	}
	_, err = o.Clients.CoreV1().Endpoints(Namespace).Patch(ctx, Service, types.ApplyPatchType, body, force)
	return err
}

// endpointsOf returns the same endpoints in the form that API servers before 1.34 read when they
// call the webhook of a Service.
func endpointsOf(slice *discoveryv1.EndpointSlice) *corev1.Endpoints { //nolint:staticcheck // what those versions have
	endpoints := &corev1.Endpoints{ //nolint:staticcheck // what those versions have
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Endpoints"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: slice.Namespace,
			Name:      Service,
			Labels:    map[string]string{discoveryv1.LabelSkipMirror: "true"},
		},
	}
	if len(slice.Endpoints) == 0 {
		return endpoints
	}
	port := slice.Ports[0]
	subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Name: *port.Name, Port: *port.Port, Protocol: *port.Protocol}}} //nolint:staticcheck // what those versions have
	for _, e := range slice.Endpoints {
		subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: e.Addresses[0]})
	}
	endpoints.Subsets = append(endpoints.Subsets, subset)
	return endpoints
}
