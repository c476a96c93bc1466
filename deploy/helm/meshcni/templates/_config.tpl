{{/* Settings of the agent, in the three ways that it takes them. */}}

{{/* The excluded namespaces, without the spaces that --set 'excludeNamespaces={a, b}' leaves; a YAML list. */}}
{{- define "meshcni.excluded" -}}
{{- $names := list -}}
{{- range .Values.excludeNamespaces }}{{ $names = append $names (trim .) }}{{ end -}}
{{- toYaml (uniq $names) -}}
{{- end -}}

{{/* What may change while it runs: the watched file of --config. */}}
{{- define "meshcni.config" -}}
{{- $excluded := include "meshcni.excluded" . | fromYamlArray -}}
{{- $config := dict
      "backend" $.Values.backend
      "log-level" $.Values.logLevel
      "add-deadline" $.Values.addDeadline
      "exclude-namespaces" $excluded -}}
{{- $dialects := include "meshcni.dialects" . | fromYamlArray -}}
{{- $_ := set $config "dialect" (ternary (first $dialects) $dialects (eq (len $dialects) 1)) -}}
{{- with $.Values.excludeNamespaceSelector }}{{- $_ := set $config "exclude-namespace-selector" . }}{{- end -}}
{{- if ne $.Values.uncapturedFamily "allow" }}{{- $_ := set $config "uncaptured-family" $.Values.uncapturedFamily }}{{- end -}}
{{- if $.Values.refuseProxyUID }}{{- $_ := set $config "refuse-proxy-uid" true }}{{- end -}}
{{- if $.Values.refuseNetRaw }}{{- $_ := set $config "refuse-net-raw" true }}{{- end -}}
{{- if $.Values.allowSandboxed }}{{- $_ := set $config "allow-sandboxed" true }}{{- end -}}
{{- with $.Values.sandboxedClasses }}{{- $_ := set $config "sandboxed-classes" . }}{{- end -}}
{{- if $.Values.writeStatus }}{{- $_ := set $config "write-status" true }}{{- end -}}
{{- with $.Values.ambient -}}
{{- if not .dnsCapture }}{{- $_ := set $config "ambient-dns-capture" false }}{{- end -}}
{{- if not .ipv6 }}{{- $_ := set $config "ambient-ipv6" false }}{{- end -}}
{{- if ne (toJson .enablementSelectors) (include "meshcni.ambientSelectors" . | fromYamlArray | toJson) -}}
{{- $_ := set $config "ambient-enablement-selectors" (toJson .enablementSelectors) -}}
{{- end -}}
{{- if ne .systemNamespace "istio-system" }}{{- $_ := set $config "ambient-system-namespace" .systemNamespace }}{{- end -}}
{{- if ne .probeIPv4 "169.254.7.127" }}{{- $_ := set $config "ambient-probe-ipv4" .probeIPv4 }}{{- end -}}
{{- if ne .probeIPv6 "fd16:9254:7127:1337:ffff:ffff:ffff:ffff" }}{{- $_ := set $config "ambient-probe-ipv6" .probeIPv6 }}{{- end -}}
{{- end -}}
{{- /* A runtime that waits for the agent starts no pod at all, while the plugin can start those outside of the mesh. */ -}}
{{- $_ := set $config "ready-without-agent" true -}}
{{- toYaml $config -}}
{{- end -}}

{{/* The name of the ConfigMap: it goes with what is in it. */}}
{{- define "meshcni.configName" -}}
{{ include "meshcni.name" . }}-{{ list (include "meshcni.config" .) (.Values.pluginConfig | default "") | toJson | sha256sum | trunc 10 }}
{{- end -}}

{{/* The agent's own ambient-enablement-selectors, as values.yaml has them: a YAML list. */}}
{{- define "meshcni.ambientSelectors" -}}
- podSelector: {matchLabels: {istio.io/dataplane-mode: ambient}}
- podSelector: {matchExpressions: [{key: istio.io/dataplane-mode, operator: NotIn, values: [none]}]}
  namespaceSelector: {matchLabels: {istio.io/dataplane-mode: ambient}}
{{- end -}}

{{/* Where things are on the node, below /host, and how the plugin gets into its network: a YAML list. */}}
{{- define "meshcni.placeArgs" -}}
{{- $args := list -}}
{{- range $.Values.cni.binDirs }}{{- $args = append $args (printf "--cni-bin-dir=/host%s" .) }}{{- end -}}
{{- $args = append $args (printf "--cni-conf-dir=/host%s" $.Values.cni.confDir) -}}
{{- $args = append $args (printf "--cni-cache-dir=/host%s" $.Values.cni.cacheDir) -}}
{{- if not $.Values.cni.enabled }}{{- $args = append $args "--alone=true" }}{{- end -}}
{{- with $.Values.cni.confName }}{{- $args = append $args (printf "--cni-conf-name=%s" .) }}{{- end -}}
{{- $args = append $args (printf "--chained=%t" $.Values.cni.chained) -}}
{{- $args = append $args (printf "--own-file=%v" $.Values.cni.ownFile) -}}
{{- $args = append $args (printf "--run-dir=%s" $.Values.cni.runDir) -}}
{{- with include "meshcni.hookDir" . }}{{- $args = append $args (printf "--nri-plugin-dir=/host%s" .) }}{{- end -}}
{{- toYaml $args -}}
{{- end -}}

{{/* What the node's proxy and its pods need, nothing where there is none: a YAML list. */}}
{{- define "meshcni.ambientArgs" -}}
{{- $args := list -}}
{{- with $.Values.ambient }}{{- if .enabled -}}
{{- $args = list "--ambient=true" (printf "--zds-socket=%s" .zdsSocket) (printf "--ambient-verify-interval=%s" .verifyInterval) (printf "--ambient-drain-timeout=%s" .drainTimeout) (printf "--ambient-drain-minimum=%s" .drainMinimum) -}}
{{- end }}{{- end -}}
{{- toYaml $args -}}
{{- end -}}

{{/* How the API server is reached, as far as that is set: a YAML list. */}}
{{- define "meshcni.apiServerArgs" -}}
{{- $args := list -}}
{{- range $key, $value := $.Values.apiServer }}
{{- if $value }}{{- $args = append $args (printf "--kubernetes-service-%s=%v" $key $value) }}{{- end -}}
{{- end -}}
{{- toYaml $args -}}
{{- end -}}

{{/* What is fixed for the life of a pod: its arguments, a YAML list. Host directories are mounted below /host. */}}
{{- define "meshcni.args" -}}
{{- $args := list (printf "--config=/etc/%s/config.yaml" $.Values.product) (printf "--identity=%s" (include "meshcni.identity" .)) -}}
{{- if $.Values.pluginConfig }}{{- $args = append $args (printf "--plugin-config=/etc/%s/plugin.json" $.Values.product) }}{{- end -}}
{{- $args = concat $args (include "meshcni.placeArgs" . | fromYamlArray) (include "meshcni.apiServerArgs" . | fromYamlArray) -}}
{{- $args = append $args (printf "--plugin-service-account=%s" (include "meshcni.pluginAccountName" $)) -}}
{{- $args = append $args (printf "--token-lifetime=%s" $.Values.tokenLifetime) -}}
{{- $args = append $args (printf "--detect=%t" $.Values.detect.enabled) -}}
{{- $args = append $args (printf "--repair=%s" $.Values.repair.mode) -}}
{{- $args = concat $args (include "meshcni.ambientArgs" . | fromYamlArray) -}}
{{- with include "meshcni.runtimeHook" . }}{{- if ne . "auto" }}{{- $args = append $args (printf "--runtime-hook=%s" .) }}{{- end }}{{- end -}}
{{- if ne $.Values.runtimeHook.socket "/var/run/nri/nri.sock" }}{{- $args = append $args (printf "--nri-socket=%s" $.Values.runtimeHook.socket) }}{{- end -}}
{{- if include "meshcni.hookDir" . }}{{- $args = append $args (printf "--preinstall=%s" (include "meshcni.preinstall" .)) }}{{- end -}}
{{- if and .Values.ambient.enabled .Values.taint.enabled .Values.taint.needsProxy }}{{- $args = append $args "--ready-needs-proxy=true" }}{{- end -}}
{{- /* An unquoted off is false in YAML. */ -}}
{{- with ternary "off" $.Values.agent (eq (toString $.Values.agent) "false") }}{{- if ne . "prefer" }}{{- $args = append $args (printf "--agent=%s" .) }}{{- end }}{{- end -}}
{{- $args = append $args (printf "--uninstall-on-exit=%v" $.Values.uninstallOnExit) -}}
{{- $args = append $args (printf "--health-address=%s" (include "meshcni.listen" (dict "host" (include "meshcni.healthHost" .) "port" .Values.health.port))) -}}
{{- $args = append $args (printf "--start-socket=%s" (include "meshcni.startSocket" .)) -}}
{{- $out := list "run" -}}
{{- range $args }}{{- $out = append $out (include "meshcni.literal" .) }}{{- end -}}
{{- /* Not literally: it may be $(POD_IP). */ -}}
{{- $metrics := include "meshcni.listen" (dict "host" (include "meshcni.metricsHost" .) "port" .Values.metrics.port) -}}
{{- $out = append $out (printf "--metrics-address=%s" (ternary $metrics "" $.Values.metrics.enabled)) -}}
{{- toYaml (concat $out $.Values.extraArgs) -}}
{{- end -}}

{{/* Its environment, a YAML list: who it is, and the finer settings of repair. */}}
{{- define "meshcni.env" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: {{ include "meshcni.envPrefix" . }}DAEMONSET_NAME
  value: {{ include "meshcni.name" . }}
- name: {{ include "meshcni.envPrefix" . }}CONFIG_ID
  value: {{ include "meshcni.configName" . }}
# An empty variable is one that is not set. Where iptables is run, it is run as the plugin runs it: the host's, with the host's files.
# Namespaces are found by the host's paths.
- name: {{ include "meshcni.envPrefix" . }}REPAIR_HOST_ROOT
  value: {{ ternary "/proc/1/root" "" (or .Values.ambient.enabled (include "meshcni.usesHostPrograms" . | eq "yes")) | quote }}
{{- $r := $.Values.repair }}
{{- $settings := dict
      "INIT_CONTAINER" $r.initContainer "MESSAGE" $r.message "ANNOTATION" $r.annotation "LABEL" $r.label
      "LABEL_SELECTOR" $r.labelSelector "FIELD_SELECTOR" $r.fieldSelector
      "NODE_RATE" $r.nodeRate "NODE_BURST" $r.nodeBurst }}
{{- if $r.exitCodes }}{{- $_ := set $settings "EXIT_CODES" (join "," $r.exitCodes) }}{{- end }}
{{- if not $r.uncaptured }}{{- $_ := set $settings "UNCAPTURED" false }}{{- end }}
{{- if include "meshcni.verifies" . }}{{- $_ := set $settings "VERIFY_INTERVAL" $r.verifyInterval }}{{- end }}
{{- if and (eq $r.mode "delete") $r.forceDelete }}{{- $_ := set $settings "FORCE_DELETE" true }}{{- end }}
{{- if has $r.mode (list "auto" "delete") }}{{- $_ := set $settings "SPARE_UNMANAGED" $r.spareUnmanaged }}{{- end }}
{{- range $name := list "ANNOTATION" "EXIT_CODES" "FIELD_SELECTOR" "FORCE_DELETE" "INIT_CONTAINER" "LABEL" "LABEL_SELECTOR" "MESSAGE" "NODE_BURST" "NODE_RATE" "SPARE_UNMANAGED" "UNCAPTURED" "VERIFY_INTERVAL" }}
{{- $value := get $settings $name }}
{{- if or (kindIs "invalid" $value) (not (include "meshcni.repairs" $)) }}{{ $value = "" }}{{ end }}
- name: {{ include "meshcni.envPrefix" $ }}REPAIR_{{ $name }}
  value: {{ include "meshcni.literal" $value | quote }}
{{- end }}
{{- include "meshcni.argsAsEnv" . }}
{{- with $.Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The agent's arguments as variables, so that programs which are run in its container by hand (kubectl exec) know them too. */}}
{{- define "meshcni.argsAsEnv" -}}
{{- $vars := dict -}}
{{- $prefix := include "meshcni.envPrefix" . -}}
{{- range list "agent" "alone" "ambient" "ambient-drain-minimum" "ambient-drain-timeout" "ambient-verify-interval" "chained" "cni-bin-dir" "cni-cache-dir" "cni-conf-dir" "cni-conf-name" "config" "detect" "health-address" "kubernetes-service-host" "kubernetes-service-port" "kubernetes-service-protocol" "metrics-address" "nri-plugin-dir" "nri-socket" "own-file" "plugin-config" "plugin-service-account" "preinstall" "ready-needs-proxy" "repair" "run-dir" "runtime-hook" "token-lifetime" "uninstall-on-exit" "zds-socket" -}}
{{- $_ := set $vars (upper . | replace "-" "_" | printf "%s%s" $prefix) "" -}}
{{- end -}}
{{- range include "meshcni.args" . | fromYamlArray -}}
{{- $flag := regexFind "^--[a-z-]+=" . -}}
{{- if $flag -}}
{{- $name := $flag | trimPrefix "--" | trimSuffix "=" | upper | replace "-" "_" | printf "%s%s" $prefix -}}
{{- $value := trimPrefix $flag . -}}
{{- $again := and (eq $flag "--cni-bin-dir=") (get $vars $name) -}}
{{- if hasKey $vars $name }}{{ $_ := set $vars $name (ternary (printf "%s,%s" (get $vars $name) $value) $value (not (not $again))) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- range $.Values.extraEnv }}{{- $_ := unset $vars .name }}{{- end -}}
{{- with $vars }}
# The arguments again, without extraArgs, for programs that are run in this container by hand. An empty one is not set.
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end -}}
