{{/* Settings of the agent, in the three ways that it takes them. */}}

{{/* What may change while it runs: the watched file of --config. */}}
{{- define "meshcni.config" -}}
{{- $v := include "meshcni.values" . | fromYaml -}}
{{- $config := dict
      "dialect" $v.dialect
      "backend" $v.backend
      "log-level" $v.logLevel
      "add-deadline" $v.addDeadline
      "exclude-namespaces" $v.excludeNamespaces -}}
{{- if ne $v.uncapturedFamily "allow" }}{{- $_ := set $config "uncaptured-family" $v.uncapturedFamily }}{{- end -}}
{{- if $v.refuseProxyUID }}{{- $_ := set $config "refuse-proxy-uid" true }}{{- end -}}
{{- if $v.writeStatus }}{{- $_ := set $config "write-status" true }}{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* What is fixed for the life of a pod: its arguments, a YAML list. Host directories are mounted below /host. */}}
{{- define "meshcni.args" -}}
{{- $v := include "meshcni.values" . | fromYaml -}}
{{- $args := list "--config=/etc/meshcni/config.yaml" -}}
{{- if $v.pluginConfig }}{{- $args = append $args "--plugin-config=/etc/meshcni/plugin.json" }}{{- end -}}
{{- range $v.cni.binDirs }}{{- $args = append $args (printf "--cni-bin-dir=/host%s" .) }}{{- end -}}
{{- $args = append $args (printf "--cni-conf-dir=/host%s" $v.cni.confDir) -}}
{{- $args = append $args (printf "--cni-cache-dir=/host%s" $v.cni.cacheDir) -}}
{{- with $v.cni.confName }}{{- $args = append $args (printf "--cni-conf-name=%s" .) }}{{- end -}}
{{- $args = append $args (printf "--chained=%t" $v.cni.chained) -}}
{{- $args = append $args (printf "--own-file=%t" $v.cni.ownFile) -}}
{{- $args = append $args (printf "--run-dir=%s" $v.cni.runDir) -}}
{{- range $key, $value := $v.apiServer }}
{{- if $value }}{{- $args = append $args (printf "--kubernetes-service-%s=%v" $key $value) }}{{- end -}}
{{- end -}}
{{- $args = append $args (printf "--repair=%s" $v.repair.mode) -}}
{{- $args = append $args (printf "--uninstall-on-exit=%v" $v.uninstallOnExit) -}}
{{- $args = append $args (printf "--health-address=%s" (include "meshcni.listen" $v.health)) -}}
{{- $args = append $args (printf "--metrics-address=%s" (ternary (include "meshcni.listen" $v.metrics) "" $v.metrics.enabled)) -}}
{{- $out := list "run" -}}
{{- range $args }}{{- $out = append $out (include "meshcni.literal" .) }}{{- end -}}
{{- toYaml (concat $out $v.extraArgs) -}}
{{- end -}}

{{/* Its environment, a YAML list: who it is, and the finer settings of repair. */}}
{{- define "meshcni.env" -}}
{{- $v := include "meshcni.values" . | fromYaml -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: MESHCNI_DAEMONSET_NAME
  value: {{ include "meshcni.name" . }}
{{- if include "meshcni.entersPods" . }}
# Programs of the host are run as the plugin runs them: with the host's files.
- name: MESHCNI_REPAIR_HOST_ROOT
  value: /proc/1/root
{{- end }}
{{- if include "meshcni.repairs" . }}
{{- $r := $v.repair }}
{{- $settings := dict
      "INIT_CONTAINER" $r.initContainer "MESSAGE" $r.message "ANNOTATION" $r.annotation "LABEL" $r.label
      "LABEL_SELECTOR" $r.labelSelector "FIELD_SELECTOR" $r.fieldSelector
      "NODE_RATE" $r.nodeRate "NODE_BURST" $r.nodeBurst
      "MAX_BROKEN_SHARE" $r.maxBrokenShare "MIN_BROKEN" $r.minBroken "TRIAL_INTERVAL" $r.trialInterval }}
{{- if $r.exitCodes }}{{- $_ := set $settings "EXIT_CODES" (join "," $r.exitCodes) }}{{- end }}
{{- if include "meshcni.verifies" . }}{{- $_ := set $settings "VERIFY_INTERVAL" $r.verifyInterval }}{{- end }}
{{- if eq $r.mode "delete" }}
{{- $_ := set $settings "CLUSTER_BURST" $r.clusterBurst }}
{{- if $r.clusterRate }}
{{- $_ := set $settings "CLUSTER_RATE" $r.clusterRate }}
{{- $_ := set $settings "BUDGET_NAMESPACE" .Release.Namespace }}
{{- end }}
{{- if $r.forceDelete }}{{- $_ := set $settings "FORCE_DELETE" true }}{{- end }}
{{- if $r.spareUnmanaged }}{{- $_ := set $settings "SPARE_UNMANAGED" true }}{{- end }}
{{- end }}
{{- range $name, $value := $settings }}
{{- if not (kindIs "invalid" $value) }}
- name: MESHCNI_REPAIR_{{ $name }}
  value: {{ include "meshcni.literal" $value | quote }}
{{- end }}
{{- end }}
{{- if ne $v.uncapturedFamily "allow" }}
- name: MESHCNI_UNCAPTURED_FAMILY
  value: {{ $v.uncapturedFamily }}
{{- end }}
{{- end }}
{{- with $v.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}
