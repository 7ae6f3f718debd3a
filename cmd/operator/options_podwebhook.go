package operator

import (
	"errors"
	"flag"
	"fmt"
	"net/url"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/webhooks/registration"
)

// The values of --pod-webhook.
const (
	podWebhookExact  = "exact"
	podWebhookStatic = "static"
)

// podWebhookOptions are the flags of the Pod webhooks.
type podWebhookOptions struct {
	mode         string
	reinvocation admissionregistrationv1.ReinvocationPolicyType
	url          string
}

func (o *podWebhookOptions) bind(flags *flag.FlagSet) {
	flags.StringVar(&o.mode, "pod-webhook", podWebhookExact, "`mode` of the Pod webhooks: exact (the leader writes webhooks for the Pods that SidecarSets select) or static (an administrator maintains one webhook for all Pods, see config/overlays/static)")
	flags.StringVar((*string)(&o.reinvocation), "pod-webhook-reinvocation", string(admissionregistrationv1.NeverReinvocationPolicy), "`policy` of exact Pod webhooks: Never, or IfNeeded if another webhook adds labels or containers after ours")
	flags.StringVar(&o.url, "pod-webhook-url", "", "`prefix` of the URLs that API servers call for exact Pod webhooks, such as https://127.0.0.1:9443; default is the Service")
}

func (o *podWebhookOptions) check() error {
	var errs []error
	if o.mode != podWebhookExact && o.mode != podWebhookStatic {
		errs = append(errs, fmt.Errorf("--pod-webhook=%s: use exact or static", o.mode))
	}
	if o.reinvocation != admissionregistrationv1.NeverReinvocationPolicy && o.reinvocation != admissionregistrationv1.IfNeededReinvocationPolicy {
		errs = append(errs, fmt.Errorf("--pod-webhook-reinvocation=%s: use Never or IfNeeded", o.reinvocation))
	}
	if u, err := url.Parse(o.url); o.url != "" && (err != nil || u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "") {
		errs = append(errs, fmt.Errorf("--pod-webhook-url=%s: use an https URL without a query, such as https://127.0.0.1:9443", o.url))
	}
	return errors.Join(errs...)
}

// webhooks are the options of the part that keeps the Pod webhooks.
func (o *Options) webhooks(serving *certs.Serving, injectors *registration.Injectors) registration.Options {
	return registration.Options{
		Settings: podwebhook.Settings{
			Namespace:          o.namespace,
			ExcludedNamespaces: o.excludedNamespaces,
			Service:            admissionregistrationv1.ServiceReference{Namespace: o.namespace, Name: o.webhookService},
			URL:                o.podWebhook.url,
			Reinvocation:       o.podWebhook.reinvocation,
		},
		Bundle:         serving.Publisher.Bundle,
		FreshBundle:    serving.Publisher.Fresh,
		BundleChanged:  serving.Publisher.Notify,
		Certificate:    serving.Source.Trusted,
		ServesWebhooks: o.answersWebhooks(),
		Injectors:      injectors,
		Static:         o.podWebhook.mode == podWebhookStatic,
		Registry:       metrics.Registry,
	}
}
