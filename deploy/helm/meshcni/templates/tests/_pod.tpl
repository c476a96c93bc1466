{{/* What makes a pod one of the mesh, by dialect: annotations, and the proxy's container and user. A mesh whose proxy
is on the node has no such container, and goes by labels. */}}
{{- define "meshcni.testMesh" -}}
istio:
  proxy: istio-proxy
  user: 1337
  annotations:
    sidecar.istio.io/status: "{}"
linkerd:
  proxy: linkerd-proxy
  user: 2102
kuma:
  proxy: kuma-sidecar
  user: 5678
  annotations:
    kuma.io/sidecar-injected: "true"
consul:
  proxy: consul-dataplane
  user: 5995
  annotations:
    consul.hashicorp.com/connect-inject-status: injected
    consul.hashicorp.com/transparent-proxy-status: enabled
    consul.hashicorp.com/dual-stack: "false"
    consul.hashicorp.com/redirect-traffic-config: '{"ProxyUserID":"5995","ProxyInboundPort":20000,"ProxyOutboundPort":15001}'
ambient:
  labels:
    istio.io/dataplane-mode: ambient
{{- end -}}

{{/* The meshes that are tested, a YAML list: of several with sidecars the first, which has the pod; and ambient, unless other labels
than Istio's select its pods. Nothing is tested in a namespace that is left alone, nor with a plugin of unknown configuration. */}}
{{- define "meshcni.tested" -}}
{{- $tested := list -}}
{{- if and .Values.tests.enabled (not (has .Release.Namespace (include "meshcni.excluded" . | fromYamlArray))) (not .Values.pluginConfig) -}}
{{- with include "meshcni.sidecars" . | fromYamlArray }}{{ if hasKey (include "meshcni.testMesh" $ | fromYaml) (first .) }}{{ $tested = append $tested (first .) }}{{ end }}{{ end -}}
{{- if and .Values.ambient.enabled (eq (toJson .Values.ambient.enablementSelectors) (include "meshcni.ambientSelectors" . | fromYamlArray | toJson)) }}{{ $tested = append $tested "ambient" }}{{ end -}}
{{- end -}}
{{- toYaml $tested -}}
{{- end -}}

{{/* The name of a mesh's pod, by (list . DIALECT), and all those that there may be, a YAML list. */}}
{{- define "meshcni.testName" -}}
{{- include "meshcni.own" (list (first .) (ternary "test-ambient" "test" (eq (last .) "ambient"))) -}}
{{- end -}}
{{- define "meshcni.testNames" -}}
- {{ include "meshcni.testName" (list . "") }}
{{- if .Values.ambient.enabled }}
- {{ include "meshcni.testName" (list . "ambient") }}
{{- end }}
{{- end -}}

{{/* The pod's namespace, as it is in the cluster; one that is not made yet, or that cannot be asked for, has nothing to inherit. */}}
{{- define "meshcni.testNamespace" -}}
{{- $metadata := lookup "v1" "Namespace" "" .Release.Namespace | dig "metadata" dict -}}
apiVersion: v1
kind: Namespace
metadata:
  name: {{ .Release.Namespace | quote }}
  {{- with $metadata.labels }}
  labels:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $metadata.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* One check, as a container. That of the proxy waits for the kubelet's probe, which has to arrive at the proxy's inbound port whatever
port it goes to. Use: (dict "root" . "dialect" "…" "name" "…" "user" 1000 "proxy" true) */}}
{{- define "meshcni.testContainer" -}}
- name: {{ .name }}
  image: {{ include "meshcni.image" .root | quote }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [/usr/local/bin/{{ .root.Values.product }}-redirect]
  args:
    - validate
    - --dialect={{ .dialect }}
    - --file=/etc/meshcni-test/pod.yaml
    - --namespace-file=/etc/meshcni-test/namespace.yaml
    - --iptables-probe-port=15002
    - --report=/report/validate
    {{- if .proxy }}
    - --from-outside=1m
  readinessProbe:
    tcpSocket:
      port: 15002
    periodSeconds: 1
    {{- end }}
  resources:
    requests: {cpu: 10m, memory: 20Mi}
  securityContext:
    runAsUser: {{ .user | int }}
    runAsGroup: {{ .user | int }}
    runAsNonRoot: true
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
    seccompProfile:
      type: RuntimeDefault
  volumeMounts:
    - name: pod
      mountPath: /etc/meshcni-test
      readOnly: true
    - name: report
      mountPath: /report
{{- end -}}

{{/* The pod of a mesh. Use: (dict "root" . "dialect" "…") */}}
{{- define "meshcni.testPod" -}}
{{- $dialect := .dialect -}}
{{- $mesh := include "meshcni.testMesh" . | fromYaml | dig $dialect dict -}}
{{- with .root -}}
apiVersion: v1
kind: Pod
metadata:
  name: {{ include "meshcni.testName" (list . $dialect) }}
  namespace: {{ .Release.Namespace | quote }}
  labels:
    {{- include "meshcni.labelsOf" (dict "root" . "component" "test" "more" $mesh.labels) | nindent 4 }}
  annotations:
    helm.sh/hook: test
    # It stays until the next one, since --logs reads it after the test. The release's removal takes it away.
    helm.sh/hook-delete-policy: before-hook-creation
    {{- with $mesh.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with .Values.networkAttachmentDefinition }}
    {{- if .enabled }}
    k8s.v1.cni.cncf.io/networks: {{ first .namespaces }}/{{ .name }}
    {{- end }}
    {{- end }}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  # What a user of an application sends must reach the proxy; what comes from outside must reach it, too, and what it sends to its own pod.
  {{- if $mesh.proxy }}
  initContainers:
    {{- include "meshcni.testContainer" (dict "root" . "dialect" $dialect "name" "as-application" "user" 65532) | nindent 4 }}
  containers:
    {{- include "meshcni.testContainer" (dict "root" . "dialect" $dialect "name" $mesh.proxy "user" $mesh.user "proxy" true) | nindent 4 }}
  {{- else }}
  containers:
    {{- include "meshcni.testContainer" (dict "root" . "dialect" $dialect "name" "as-application" "user" 65532) | nindent 4 }}
  {{- end }}
  volumes:
    - name: pod
      configMap:
        name: {{ include "meshcni.testName" (list . $dialect) }}-pod
    # What the init container says is in the log that "helm test --logs" shows, too.
    - name: report
      emptyDir:
        medium: Memory
        sizeLimit: 1Mi
{{- end -}}
{{- end -}}
