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
	mode      string
	secret    string
	directory string
	publish   bool

	caLifetime, leafLifetime, settle, overlap, poll, patience time.Duration
}

func (o *certificateOptions) bind(flags *flag.FlagSet) {
	flags.StringVar(&o.mode, "cert-mode", string(certs.ModeSelf), "where the serving certificate comes from: `self` (a CA of the operator's own), cert-manager (declared to it) or files (mounted by somebody)")
	flags.StringVar(&o.secret, "cert-secret", "sidecarset-webhook-certs", "`name` of the Secret that holds the CA of the serving certificates, in mode self")
	flags.StringVar(&o.directory, "cert-dir", "/var/run/sidecarset/certs", "`directory` that holds tls.crt, tls.key and ca.crt, in mode files")
	flags.BoolVar(&o.publish, "cert-publish-bundle", true, "write the CA bundle into the webhook configurations and the CustomResourceDefinition; false, in mode files, leaves those of the manifests to somebody else, as cert-manager's cainjector")
	flags.DurationVar(&o.caLifetime, "cert-ca-lifetime", 365*24*time.Hour, "`time` that a CA is valid; it is rotated after two thirds of it. At least three times --cert-leaf-lifetime and --cert-settle together")
	flags.DurationVar(&o.leafLifetime, "cert-leaf-lifetime", 30*24*time.Hour, "`time` that a serving certificate is valid; it is renewed after two thirds of it")
	flags.DurationVar(&o.settle, "cert-settle", 10*time.Minute, "`time` that a new CA is published before a certificate of it is served")
	flags.DurationVar(&o.overlap, "cert-overlap", time.Hour, "`time` that a CA stays published after another one has taken its place, in modes cert-manager and files")
	flags.DurationVar(&o.poll, "cert-poll", 10*time.Second, "`time` between two looks at the Secret or the files")
	flags.DurationVar(&o.patience, "cert-manager-timeout", 2*time.Minute, "`time` after which a certificate that cert-manager has not issued is reported as an error")
}

// check says which flags cannot be used.
func (o certificateOptions) check(all certs.Options) error {
	var errs []error
	for name, value := range map[string]time.Duration{
		"cert-ca-lifetime": o.caLifetime, "cert-leaf-lifetime": o.leafLifetime, "cert-settle": o.settle,
		"cert-overlap": o.overlap, "cert-poll": o.poll, "cert-manager-timeout": o.patience,
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

// checkURLIsVouchedFor refuses a URL at which API servers would not accept the serving certificate. An entry that calls another host
// than those is taken for somebody else's.
func (o Options) checkURLIsVouchedFor() error {
	u, err := url.Parse(o.podWebhook.url)
	if err != nil || u.Host == "" {
		return nil //nolint:nilerr // there is none, or podWebhookOptions.check reports it
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
	return certs.Options{
		Mode:               certs.Mode(o.certs.mode),
		Namespace:          o.namespace,
		SecretName:         o.certs.secret,
		Directory:          o.certs.directory,
		Subject:            subject,
		CALifetime:         o.certs.caLifetime,
		LeafLifetime:       o.certs.leafLifetime,
		Settle:             o.certs.settle,
		Overlap:            o.certs.overlap,
		Poll:               o.certs.poll,
		Patience:           o.certs.patience,
		PublishedElsewhere: !o.certs.publish,
	}
}
