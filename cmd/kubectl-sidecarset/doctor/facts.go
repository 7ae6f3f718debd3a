package doctor

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
)

// Cluster is how a cluster is reached.
type Cluster struct {
	Client client.Client
	// Namespace is the operator's.
	Namespace string
	// Read reads the SidecarSets, and the Namespaces with their labels.
	Read func(context.Context, *clusterview.Parts) error
}

// facts are what several checks look at.
type facts struct {
	Cluster
	installation
	deployments appsv1.DeploymentList // of the operator
	endpoints   discoveryv1.EndpointSliceList
	lease       coordinationv1.Lease // empty if there is none
	mutating    admissionregistrationv1.MutatingWebhookConfigurationList
	validating  admissionregistrationv1.ValidatingWebhookConfigurationList
	crd         apiextensionsv1.CustomResourceDefinition // empty if there is none
	parts       clusterview.Parts
	// unread says why parts is not complete; nil if it is.
	unread error
}

const (
	mutatingConfiguration   = "sidecarset-mutating-webhook"
	validatingConfiguration = "sidecarset-validating-webhook"
	definition              = "sidecarsets.apps.kruise.io"
	// LeaseName is the name of the leader's Lease, in the operator's namespace.
	LeaseName  = "sidecarset-operator"
	applyAgain = "apply the manifests of the operator again (kubectl apply -k config/default, or the profile that you installed)"
)

func gather(ctx context.Context, c Cluster) (*facts, error) {
	f := &facts{Cluster: c}
	in := client.InNamespace(c.Namespace)
	if err := cmp.Or( // the first error
		apiextensionsv1.AddToScheme(c.Client.Scheme()),
		c.Client.List(ctx, &f.deployments, in, client.MatchingLabels{"app.kubernetes.io/part-of": "sidecarset"}),
		c.Client.List(ctx, &f.endpoints, in),
		c.Client.List(ctx, &f.mutating),
		c.Client.List(ctx, &f.validating),
		client.IgnoreNotFound(c.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: LeaseName}, &f.lease)),
		client.IgnoreNotFound(c.Client.Get(ctx, client.ObjectKey{Name: definition}, &f.crd)),
	); apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("%w; doctor reads webhook configurations, the CRD and the operator's namespace: use a kubeconfig of an administrator", err)
	} else if err != nil {
		return nil, fmt.Errorf("reading what is installed: %w", err)
	}
	if len(f.deployments.Items) == 0 && f.lease.Name == "" && f.crd.Name != "" {
		return nil, fmt.Errorf("namespace %s has neither a Deployment of the operator nor its Lease: name the operator's namespace with --operator-namespace; if there is none, install the operator (docs/install.md)", c.Namespace)
	}
	f.installation = newInstallation(c.Namespace, f.deployments.Items, f.called())
	f.parts = clusterview.Parts{Excluded: f.excluded(), Now: time.Now()}
	f.unread = c.Read(ctx, &f.parts)
	return f, nil
}

// installation is what the flags of the operator say. Without a Deployment, its processes run
// elsewhere, and the defaults of the flags count.
type installation struct {
	namespace string
	args      []string // of all Deployments
	// url is the beginning of the URLs that API servers call instead of the Services; "" if they
	// call the Services.
	url string
}

// called are the clients of the webhooks for SidecarSets, in the objects of the manifests.
func (f *facts) called() (all []admissionregistrationv1.WebhookClientConfig) {
	for _, c := range f.mutating.Items {
		if c.Name == mutatingConfiguration && len(c.Webhooks) > 0 {
			all = append(all, c.Webhooks[0].ClientConfig)
		}
	}
	for _, c := range f.validating.Items {
		if c.Name == validatingConfiguration && len(c.Webhooks) > 0 {
			all = append(all, c.Webhooks[0].ClientConfig)
		}
	}
	return all
}

func newInstallation(namespace string, deployments []appsv1.Deployment, called []admissionregistrationv1.WebhookClientConfig) installation {
	in := installation{namespace: namespace}
	for i := range deployments {
		for _, c := range deployments[i].Spec.Template.Spec.Containers {
			in.args = append(in.args, c.Args...)
		}
	}
	in.url = in.flag("pod-webhook-url", "")
	if len(deployments) > 0 {
		return in
	}
	for _, config := range called {
		if of := config.URL; of != nil && in.url == "" {
			in.url = (*of)[:strings.LastIndex(*of, "/")]
		}
	}
	return in
}

func (in *installation) flag(name, otherwise string) string { return valueOf(in.args, name, otherwise) }

func (in *installation) excluded() []string {
	return append(strings.FieldsFunc(in.flag("excluded-namespaces", "kube-system"), func(r rune) bool { return r == ',' || r == ' ' }), in.namespace)
}

func (in *installation) service() string { return in.flag("webhook-service", "sidecarset-webhook") }

// calls reports whether a webhook calls the operator.
func (in *installation) calls(config *admissionregistrationv1.WebhookClientConfig) bool {
	if service := config.Service; service != nil {
		return service.Namespace == in.namespace && service.Name == in.service()
	}
	return config.URL != nil && in.url != "" && strings.HasPrefix(*config.URL, in.url)
}

// valueOf returns the value of a flag in a command line of the operator.
func valueOf(args []string, name, otherwise string) string {
	for i, arg := range args {
		flag, value, has := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case flag != name || flag == arg:
		case has:
			return value
		case i+1 < len(args):
			return args[i+1]
		}
	}
	return otherwise
}
