package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/stand"
)

// Machine is a node of the cluster, made of this machine's containerd, a kubelet,
// and a registry. It lives in the namespaces of this process and ends with them.
type Machine struct {
	dir        string
	containerd *stand.Process
	kubelet    *stand.Process
}

const (
	nodeName   = "node"
	registry   = "127.0.0.1:5000" // containerd uses http for a loopback address
	cniDir     = "/usr/lib/cni"   // where Debian installs the plugins
	apiService = "10.96.0.1"      // of the Service kubernetes

	operatorImage = "sidecarset-operator:node"
)

// StartMachine starts a node and returns when it is Ready. dir holds the programs
// image, program and operator, and gets everything that the node writes.
func StartMachine(ctx context.Context, c *stand.Cluster, dir string) (*Machine, error) {
	m := &Machine{dir: dir}
	if err := errors.Join(ownDirectories(), pinSysctls(dir), makeCgroups(filepath.Base(dir))); err != nil {
		return nil, err
	}
	if err := serveAPI(ctx, c); err != nil {
		return nil, err
	}
	if _, err := m.start(ctx, c, "registry", filepath.Join(dir, "image"), "registry", "--listen="+registry); err != nil {
		return nil, err
	}
	if err := await.Until(ctx, stand.AnswersHTTP("http://"+registry+"/v2/")); err != nil {
		return nil, err
	}
	if err := m.pushImages(ctx); err != nil {
		return nil, err
	}
	if err := m.configure(); err != nil {
		return nil, err
	}
	var err error
	if m.containerd, err = m.start(ctx, c, "containerd", "containerd", "--config="+m.file("containerd.toml")); err != nil {
		return nil, err
	}
	if err := await.Until(ctx, answersUnix(m.socket())); err != nil {
		return nil, fmt.Errorf("waiting for containerd: %w: %s", err, m.containerd.Tail(20))
	}
	m.kubelet, err = m.start(ctx, c, "kubelet", filepath.Join(c.BinDir, "kubelet"),
		"--config="+m.file("kubelet.yaml"), "--kubeconfig="+c.Kubeconfig, "--hostname-override="+nodeName,
		"--node-ip="+stand.Address(1), "--root-dir=/var/lib/kubelet", "--cert-dir="+m.file("kubelet-pki"), "--v=2",
		// Tests look at how a container ended; on a busy machine they look minutes later.
		"--minimum-container-ttl-duration=1h", "--maximum-dead-containers-per-container=10")
	if err != nil {
		return nil, err
	}
	return m, m.awaitReady(ctx, c)
}

func (m *Machine) file(name string) string { return filepath.Join(m.dir, name) }
func (m *Machine) socket() string          { return m.file("containerd.sock") }

// start runs a part of the node until the cluster stops.
func (m *Machine) start(ctx context.Context, c *stand.Cluster, name, path string, args ...string) (*stand.Process, error) {
	program, err := exec.LookPath(path)
	if err != nil {
		return nil, err
	}
	p, err := stand.StartProcess(ctx, stand.Command{Name: name, Path: program, Args: args, LogDir: filepath.Join(c.Dir, "logs")})
	if err == nil {
		c.BeforeStop(p.Kill) // it has nothing to save
	}
	return p, err
}

func (m *Machine) awaitReady(ctx context.Context, c *stand.Cluster) error {
	clients, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return err
	}
	return m.kubelet.Await(ctx, func(ctx context.Context) error {
		node, err := clients.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue && len(node.Spec.Taints) == 0 {
				return nil
			}
		}
		return fmt.Errorf("the node has taints %v, conditions %v", node.Spec.Taints, node.Status.Conditions)
	})
}

// ownDirectories puts empty file systems over the directories in which kubelet,
// containerd and plugins write, whatever their configuration says.
func ownDirectories() error {
	for _, dir := range []string{"/run", "/var/lib", "/var/log"} {
		if err := syscall.Mount("node", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mounting over %s: %w", dir, err)
		}
	}
	if err := os.MkdirAll("/var/lib/kubelet", 0o755); err != nil {
		return err
	}
	if err := syscall.Mount("/var/lib/kubelet", "/var/lib/kubelet", "", syscall.MS_BIND, ""); err != nil {
		return err
	}
	return syscall.Mount("", "/var/lib/kubelet", "", syscall.MS_SHARED, "")
}

// pinSysctls mounts files with the values that the kubelet wants over the sysctls, so that the
// kubelet does not change the machine's.
func pinSysctls(dir string) error {
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		file := filepath.Join(dir, "sysctl-"+strings.ReplaceAll(name, "/", "-"))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := syscall.Mount(file, "/proc/sys/"+name, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting over /proc/sys/%s: %w", name, err)
		}
	}
	return nil
}

// serveAPI makes the API server answer at the address of the Service kubernetes, as kube-proxy
// does. The API server's certificate names the address.
func serveAPI(ctx context.Context, c *stand.Cluster) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", apiService+":443")
	if err != nil {
		return err
	}
	target := strings.TrimPrefix(c.APIServers[0], "https://")
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go splice(conn, target)
		}
	}()
	c.BeforeStop(func() { _ = listener.Close() })
	return nil
}

func splice(client net.Conn, target string) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(client, server)
}

func answersUnix(path string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// configure writes the configuration of containerd, of the Pods' network and of
// the kubelet.
func (m *Machine) configure() error {
	return errors.Join(
		os.MkdirAll(m.file("cni"), 0o755),
		os.WriteFile(m.file("containerd.toml"), []byte(strings.NewReplacer("DIR", m.dir, "CNI", cniDir, "REGISTRY", registry).Replace(containerdConfig)), 0o644),
		os.WriteFile(m.file("cni/10-bridge.conflist"), []byte(cniConfig), 0o644),
		os.WriteFile(m.file("kubelet.yaml"), []byte(strings.NewReplacer("SOCKET", m.socket(), "CGROUP", filepath.Base(m.dir), "ADDRESS", stand.Address(1)).Replace(kubeletConfig)), 0o644),
	)
}

// With restrict_oom_score_adj, no container gets a lower oom_score_adj than this process. On
// some machines even root may not lower it.
const containerdConfig = `version = 2
root = "DIR/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
address = "DIR/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "REGISTRY/pause:1"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "CNI"
conf_dir = "DIR/cni"
`

const cniConfig = `{
  "cniVersion": "0.4.0", "name": "pods",
  "plugins": [{
    "type": "bridge", "bridge": "pods0", "isGateway": true, "hairpinMode": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.98.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}
  }]
}`

// With this configuration, a pull that waits does not delay other pulls, and the kubelet removes
// no image. The static policy makes resizes of Guaranteed Pods infeasible.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: ADDRESS
healthzBindAddress: ADDRESS
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://SOCKET
cgroupDriver: cgroupfs
cgroupRoot: /CGROUP
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
cpuManagerPolicy: static
systemReserved: {cpu: 100m}
evictionHard: {memory.available: 1Mi, nodefs.available: 1Mi, nodefs.inodesFree: "1", imagefs.available: 1Mi}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
makeIPTablesUtilChains: false
maxPods: 200
serializeImagePulls: false
registryPullQPS: 0
eventRecordQPS: 0
`

// gate asks the registry about the gate of a repository; see hack/image.
func gate(ctx context.Context, method, repository string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, await.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+registry+"/gates/"+repository, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	said, err := io.ReadAll(response.Body)
	return strings.TrimSpace(string(said)), err
}

// push makes an image from a program in dir and pushes it.
func (m *Machine) push(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, m.file("image"), append(args, "--push", "--name="+registry+"/"+name)...)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pushing %s: %w: %s", name, err, said)
	}
	return nil
}

// pushImages pushes the images that all tests share.
func (m *Machine) pushImages(ctx context.Context) error {
	return errors.Join(
		m.push(ctx, "pause:1", "program", "--program="+m.file("program")),
		m.push(ctx, "app:1", "program", "--program="+m.file("program"), "--env=VERSION=app"),
		m.push(ctx, operatorImage, "operator", "--program="+m.file("operator"), "--platforms=linux/amd64", "--notices="+m.file("notices")),
	)
}
