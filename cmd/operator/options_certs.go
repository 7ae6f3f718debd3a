package operator

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"slices"
	"time"

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
	flags.BoolVar(&o.publish, "cert-publish-bundle", true, "write the CA bundle into the webhook configurations and the CustomResourceDefinition; false, in mode files only, leaves those of the manifests to another program, such as cert-manager's cainjector")
	flags.DurationVar(&o.CALifetime, "cert-ca-lifetime", 365*24*time.Hour, "`time` that a CA is valid; it is rotated after two thirds of that. At least three times the sum of --cert-leaf-lifetime and --cert-settle")
	flags.DurationVar(&o.LeafLifetime, "cert-leaf-lifetime", 30*24*time.Hour, "`time` that a serving certificate is valid; it is renewed after two thirds of that")
	flags.DurationVar(&o.Settle, "cert-settle", 10*time.Minute, "`time` that a new CA is published before a certificate from it is served")
	flags.DurationVar(&o.Overlap, "cert-overlap", time.Hour, "`time` that a CA stays published after it was replaced, in modes cert-manager and files")
	flags.DurationVar(&o.Poll, "cert-poll", 10*time.Second, "`time` between two reads of the Secret or the files")
	flags.DurationVar(&o.Patience, "cert-manager-timeout", 2*time.Minute, "`time` after which it is an error that cert-manager has not issued a certificate")
}

// check says which flags cannot be used.
func (o certificateOptions) check(all certs.Options) error {
	var errs []error
	for name, value := range map[string]time.Duration{
		"cert-ca-lifetime": o.CALifetime, "cert-leaf-lifetime": o.LeafLifetime, "cert-settle": o.Settle,
		"cert-overlap": o.Overlap, "cert-poll": o.Poll, "cert-manager-timeout": o.Patience,
	} {
		if value <= 0 {
			errs = append(errs, fmt.Errorf("--%s=%s: use a time that is positive", name, value))
		}
	}
	if len(errs) == 0 {
		errs = append(errs, all.Validate())
	}
	return errors.Join(errs...)
}

// checkURLIsVouchedFor refuses a URL for which API servers would not accept the
// serving certificate. The operator takes entries that call such a URL for another
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

// certificates returns the options of package certs.
func (o Options) certificates() certs.Options {
	subject := certs.Subject{DNSNames: []string{o.serverName(), certs.ServiceName(o.convertService, o.namespace)}}
	for _, san := range o.webhookSANs {
		if ip := net.ParseIP(san); ip != nil {
			subject.IPs = append(subject.IPs, ip)
		} else {
			subject.DNSNames = append(subject.DNSNames, san)
		}
	}
	options := o.certs.Options
	options.Namespace, options.Subject, options.PublishedElsewhere = o.namespace, subject, !o.certs.publish
	return options
}
