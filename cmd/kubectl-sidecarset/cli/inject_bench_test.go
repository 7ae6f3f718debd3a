package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
)

const benchmarkWorkload = `# The web shop.
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web-%[1]d
  namespace: shop
  labels:
    app.kubernetes.io/name: web-%[1]d
    app.kubernetes.io/part-of: shop
spec:
  replicas: 3
  selector:
    matchLabels:
      app.kubernetes.io/name: web-%[1]d
  template:
    metadata:
      labels:
        app.kubernetes.io/name: web-%[1]d
        app.kubernetes.io/part-of: shop
        sidecars: "%[2]d"
      annotations:
        prometheus.io/port: "8080"
    spec:
      serviceAccountName: web
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
      containers:
      - name: web
        image: registry.example.com/shop/web:v1.27.%[1]d # by the pipeline
        args: ["--listen=:8080", "--log-level=info"]
        ports:
        - name: http
          containerPort: 8080
        env:
        - name: REGION
          value: eu-west-1
        - name: DATABASE_PASSWORD
          valueFrom:
            secretKeyRef:
              name: database
              key: password
        resources:
          requests: {cpu: 250m, memory: 256Mi}
          limits:
            cpu: 500m
            memory: 512Mi
        readinessProbe:
          httpGet:
            path: /healthz
            port: http
          periodSeconds: 5
        livenessProbe:
          httpGet:
            path: /livez
            port: http
          initialDelaySeconds: 10
        volumeMounts:
        - name: config
          mountPath: /etc/web
      volumes:
      - name: config
        configMap:
          name: web-%[1]d
`

const benchmarkSidecarSet = `apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata:
  name: agent-%[1]d
spec:
  selector:
    matchLabels:
      sidecars: "%[2]d"
  initContainers:
  - name: agent-%[1]d
    image: registry.example.com/agent:v%[1]d
    restartPolicy: Always
    resources:
      requests: {cpu: 10m, memory: 16Mi}
    volumeMounts:
    - name: agent-%[1]d
      mountPath: /var/run/agent
  volumes:
  - name: agent-%[1]d
    emptyDir: {}
`

// BenchmarkInject1000 injects 1,000 Deployments in 100 files, each selected by 2 of 100
// SidecarSets.
func BenchmarkInject1000(b *testing.B) {
	dir := b.TempDir()
	write := func(name string, text []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	var sets bytes.Buffer
	for i := range 100 {
		fmt.Fprintf(&sets, "---\n"+benchmarkSidecarSet, i, i%50)
	}
	if err := os.Mkdir(filepath.Join(dir, "manifests"), 0o700); err != nil {
		b.Fatal(err)
	}
	write("sidecarsets.yaml", sets.Bytes())
	for file := range 100 {
		var workloads bytes.Buffer
		for i := range 10 {
			fmt.Fprintf(&workloads, "---\n"+benchmarkWorkload, 10*file+i, (10*file+i)%50)
		}
		write(fmt.Sprintf("manifests/%d.yaml", file), workloads.Bytes())
	}
	b.ReportAllocs()
	for b.Loop() {
		code := Run([]string{"inject", "-f", filepath.Join(dir, "manifests"), "-s", filepath.Join(dir, "sidecarsets.yaml")}, Streams{Out: io.Discard, ErrOut: os.Stderr}, "test")
		if code != exitDone {
			b.Fatalf("exit code %d", code)
		}
	}
}
