package operator

import (
	"cmp"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientconfig "sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/webhooks/server"
	"github.com/sidecarset/operator/webhooks/sidecarsets"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// The values of --role.
const (
	roleAll        = "all"
	roleWebhook    = "webhook"
	roleController = "controller"
)

// defaultRolloutQPS updates 50 Pods in a second.
const defaultRolloutQPS = 100

// defaultNamespace is where config/default installs the operator.
const defaultNamespace = "sidecarset-system"

// Options are the flags, and what the environment says. ParseOptions makes them.
type Options struct {
	// Version: the user wants to know the version of the program, and nothing else.
	Version bool

	role              string
	namespace         string
	revisionNamespace string

	webhookAddress string
	webhookService string
	webhookSANs    []string
	clientCAs      string
	drainGrace     time.Duration
	certs          certificateOptions
	podWebhook     podWebhookOptions

	excludedNamespaces      []string
	requesterCheck          sidecarsets.RequesterMode
	patchPodMetadataAllowed bool

	metricsAddress string
	probeAddress   string
	pprofAddress   string

	rolloutQPS int

	leaderElect                               bool
	leaseDuration, renewDeadline, retryPeriod time.Duration

	logging zap.Options
}

// ParseOptions reads the command line and checks it. getenv supplies the defaults
// that the downward API sets. The error names each wrong flag with the remedy; it
// is flag.ErrHelp if the flags were asked for and have been printed.
func ParseOptions(args []string, getenv func(string) string) (Options, error) {
	o := Options{namespace: cmp.Or(getenv("POD_NAMESPACE"), defaultNamespace)}
	excluded, sans := "", ""
	flags := o.flags(&excluded, &sans)
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.revisionNamespace == "" {
		o.revisionNamespace = o.namespace
	}
	o.excludedNamespaces = append(splitList(excluded), o.namespace)
	o.webhookSANs = splitList(sans)
	return o, o.check(flags.Args())
}

// flags sets the options, and two lists.
func (o *Options) flags(excluded, sans *string) *flag.FlagSet {
	flags := flag.NewFlagSet("sidecarset-operator", flag.ContinueOnError)
	flags.StringVar(&o.role, "role", roleAll, "`role` of this process: all, webhook (answers admission) or controller (status, certificates and Pod webhooks, if it leads)")
	flags.StringVar(&o.namespace, "namespace", o.namespace, "`namespace` where the operator runs and keeps its objects; default is $POD_NAMESPACE")
	flags.StringVar(&o.revisionNamespace, "revision-namespace", "", "`namespace` of the ControllerRevisions and the ConfigMap kruise-configuration; default is the operator's own. After a migration from OpenKruise use kruise-system")
	flags.StringVar(&o.webhookAddress, "webhook-bind-address", ":9443", "`address` on which webhooks are served")
	flags.StringVar(&o.webhookService, "webhook-service", "sidecarset-webhook", "`name` of the Service through which API servers call webhooks and conversions")
	flags.StringVar(sans, "webhook-san", "", "more DNS `names` or IP addresses for the serving certificate, separated by commas; needed if API servers call webhooks by URL")
	flags.StringVar(&o.clientCAs, "client-ca-file", "", "`file` with CAs in PEM form: reviews are answered only to clients with a certificate of one of them. Use it if API servers authenticate to webhooks. Conversions are answered to any client. The file may change. Default is any client")
	flags.DurationVar(&o.drainGrace, "drain-grace", 5*time.Second, "`time` to go on serving after the process is asked to stop, so that its endpoints are withdrawn first")
	o.certs.bind(flags)
	o.podWebhook.bind(flags)
	flags.StringVar(excluded, "excluded-namespaces", "kube-system", "`namespaces`, separated by commas, whose Pods are never injected; the operator's own is always one of them. With --pod-webhook=static the webhook configuration must exclude the same ones")
	flags.StringVar((*string)(&o.requesterCheck), "requester-check", string(sidecarsets.RequesterWarn), "`mode` of the check of requesters: off, warn (the requester gets a warning) or enforce (the SidecarSet is denied), if the requester lacks a right that the SidecarSet needs, such as to create Pods where it injects")
	flags.BoolVar(&o.patchPodMetadataAllowed, "patch-pod-metadata-allowed", false, "let patchPodMetadata set any annotation of Pods if the ConfigMap kruise-configuration has no rule about the SidecarSet, like OpenKruise's feature gate SidecarSetPatchPodMetadataDefaultsAllowed")
	flags.IntVar(&o.rolloutQPS, "rollout-qps", defaultRolloutQPS, "`number` of requests per second with which the leader updates running Pods, for all SidecarSets together. An update takes two requests; the first update of a Pod takes a third one. 0 is no limit")
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", ":8443", "`address` on which metrics are served, over TLS and to authorized clients only; 0 serves none")
	flags.StringVar(&o.probeAddress, "health-probe-bind-address", ":8081", "`address` of /healthz and /readyz")
	flags.StringVar(&o.pprofAddress, "pprof-bind-address", "", "loopback `address`, such as 127.0.0.1:6060, on which Go's profiles are served to any client that can connect; empty serves none")
	flags.BoolVar(&o.leaderElect, "leader-elect", true, "elect a leader, which runs the controllers; needed if there is more than one replica")
	flags.DurationVar(&o.leaseDuration, "leader-elect-lease-duration", 40*time.Second, "`time` after which another replica takes the place of a leader that has stopped")
	flags.DurationVar(&o.renewDeadline, "leader-elect-renew-deadline", 30*time.Second, "`time` in which the leader must renew its Lease")
	flags.DurationVar(&o.retryPeriod, "leader-elect-retry-period", 2*time.Second, "`time` between attempts to get or renew the Lease")
	flags.BoolVar(&o.Version, "version", false, "print the version and exit")
	clientconfig.RegisterFlags(flags)
	o.logging.BindFlags(flags)
	return flags
}

func (o Options) check(rest []string) error {
	var errs []error
	if len(rest) > 0 {
		errs = append(errs, fmt.Errorf("unexpected arguments %q; flags are listed by --help", rest))
	}
	if !slices.Contains([]string{roleAll, roleWebhook, roleController}, o.role) {
		errs = append(errs, fmt.Errorf("--role=%s: use all, webhook or controller", o.role))
	}
	if !slices.Contains(sidecarsets.RequesterModes, o.requesterCheck) {
		errs = append(errs, fmt.Errorf("--requester-check=%s: use off, warn or enforce", o.requesterCheck))
	}
	if !isLoopback(o.pprofAddress) {
		errs = append(errs, fmt.Errorf("--pprof-bind-address=%s: use a port of a loopback address, such as 127.0.0.1:6060", o.pprofAddress))
	}
	if o.drainGrace < 0 {
		errs = append(errs, fmt.Errorf("--drain-grace=%s: use a time that is not negative", o.drainGrace))
	}
	if o.rolloutQPS < 0 {
		errs = append(errs, fmt.Errorf("--rollout-qps=%d: use a number that is not negative", o.rolloutQPS))
	}
	if o.leaderElect && o.leaseDuration <= o.renewDeadline {
		errs = append(errs, fmt.Errorf("--leader-elect-lease-duration=%s: use more than --leader-elect-renew-deadline, which is %s", o.leaseDuration, o.renewDeadline))
	}
	for _, name := range o.excludedNamespaces {
		for _, problem := range validation.ValidateNamespaceName(name, false) { // else API servers refuse every Pod webhook
			errs = append(errs, fmt.Errorf("--excluded-namespaces: %q is not the name of a namespace: %s; separate names by commas", name, problem))
		}
	}
	errs = append(errs, o.podWebhook.check(), o.certificates().Validate(), o.checkURLIsVouchedFor())
	return errors.Join(errs...)
}

// isLoopback reports whether only processes of the same machine can connect to an
// address. An empty address is fine.
func isLoopback(address string) bool {
	if address == "" {
		return true
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || port == "" {
		return false
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func splitList(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

func (o Options) answersWebhooks() bool { return o.role != roleController }
func (o Options) runsControllers() bool { return o.role != roleWebhook }

// serverName is the name that API servers expect in the serving certificate if they
// call the Service.
func (o Options) serverName() string { return certs.ServiceName(o.webhookService, o.namespace) }

// getCertificate answers a TLS handshake.
type getCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

func (o Options) server(certificate getCertificate, stopping <-chan struct{}) (server.Options, error) {
	options := server.Options{
		Address:        o.webhookAddress,
		GetCertificate: certificate,
		Stopping:       stopping,
	}
	if o.clientCAs != "" {
		clients, err := newClientCAs(o.clientCAs, ctrl.Log.WithName("clients"))
		if err != nil {
			return options, fmt.Errorf("--client-ca-file: %w", err)
		}
		options.ClientCAs = clients.Pool
	}
	return options, nil
}

// manager returns the manager's options. The cache holds SidecarSets as unstructured
// objects and Namespaces as metadata. Other objects are read live, by name. Pods are
// never cached.
func (o Options) manager() ctrl.Options {
	return ctrl.Options{
		Scheme: scheme,
		Cache:  o.cache(),
		Client: client.Options{Cache: &client.CacheOptions{
			Unstructured: true,
			DisableFor:   []client.Object{&corev1.Pod{}, &corev1.Secret{}, &corev1.ConfigMap{}},
		}},
		// A leader with little CPU needs longer than the two minutes after which controllers end by default.
		Controller:                    config.Controller{CacheSyncTimeout: 10 * time.Minute},
		HealthProbeBindAddress:        noAddress, // ports.go has servers of our own
		PprofBindAddress:              o.pprofAddress,
		Metrics:                       metricsserver.Options{BindAddress: noAddress},
		LeaderElection:                o.leaderElect && o.runsControllers(),
		LeaderElectionID:              "sidecarset-operator",
		LeaderElectionNamespace:       o.namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &o.leaseDuration,
		RenewDeadline:                 &o.renewDeadline,
		RetryPeriod:                   &o.retryPeriod,
		GracefulShutdownTimeout:       new(o.drainGrace + 15*time.Second), // the server's grace and its bound on requests in flight
	}
}

// cache returns the options of the manager's cache. Each part names what it follows.
func (o Options) cache() cache.Options {
	options := snapshot.CacheOptions(o.revisionNamespace)
	maps.Copy(options.ByObject, o.bundleTargets().CacheByObject())
	return options
}

// restConfig sets no rate limit of the client: the API server's priority and fairness
// decides.
func restConfig(version string) (*rest.Config, error) {
	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	config.UserAgent = "sidecarset-operator/" + version
	return config, nil
}
