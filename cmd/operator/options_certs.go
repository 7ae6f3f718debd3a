package operator

import (
	"flag"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"

	"github.com/sidecarset/operator/certs"
)

// certificateOptions are the flags that say where the serving certificate comes from.
type certificateOptions struct {
	certs.Options
	publish bool
}

func (o *certificateOptions) bind(flags *flag.FlagSet) {
	flags.StringVar((*string)(&o.Mode), "cert-mode", string(certs.ModeSelf), "`source` of the serving certificate: self (a CA of the operator's own), cert-manager (a Certificate object) or files (which another program mounts)")
	flags.StringVar(&o.SecretName, "cert-secret", "sidecarset-webhook-certs", "`name` of the Secret with the CA of the serving certificates, in mode self")
	flags.StringVar(&o.Directory, "cert-dir", "/var/run/sidecarset/certs", "`directory` of tls.crt, tls.key and ca.crt, in mode files")
	flags.BoolVar(&o.publish, "cert-publish-bundle", true, "write the CA bundle into the webhook configurations and the CustomResourceDefinition; false, in mode files only, leaves the manifests' bundles to another program, such as cert-manager's cainjector")
}

// faster divides the times of the rules about certificates. Only the linker sets it, for tests of whole processes.
var faster = "1"

// checkURLIsVouchedFor refuses a URL for which API servers would not accept the
// serving certificate. The operator takes webhooks that call such a URL for another
// program's.
func (o Options) checkURLIsVouchedFor() error {
	u, err := url.Parse(o.podWebhook.url)
	if err != nil || u.Host == "" {
		return nil //nolint:nilerr // no URL, or one that podWebhookOptions.check reports
	}
	subject := o.certificates().Subject
	if slices.Contains(subject.DNSNames, u.Hostname()) || slices.ContainsFunc(subject.IPs, net.ParseIP(u.Hostname()).Equal) {
		return nil
	}
	return fmt.Errorf("--pod-webhook-url=%s: the serving certificate is not for %s: add it to --webhook-san", o.podWebhook.url, u.Hostname())
}

// metricsService is the Service through which metrics are read, as the manifests name it.
const metricsService = "sidecarset-metrics"

// certificates returns the options of package certs.
func (o Options) certificates() certs.Options {
	subject := certs.Subject{DNSNames: []string{o.serverName(), certs.ServiceName(metricsService, o.namespace)}}
	for _, san := range o.webhookSANs {
		if ip := net.ParseIP(san); ip != nil {
			subject.IPs = append(subject.IPs, ip)
		} else {
			subject.DNSNames = append(subject.DNSNames, san)
		}
	}
	options := o.certs.Options
	options.Namespace, options.Subject, options.PublishedElsewhere = o.namespace, subject, !o.certs.publish
	factor, _ := strconv.Atoi(faster)
	options.Times = certs.DefaultTimes.Faster(max(factor, 1))
	return options
}
