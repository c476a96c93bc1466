{{/* What the agent and the plugin would refuse of single values, wherever they are given: what is said here replaces nothing. */}}

{{/* What the values of flags match, as a YAML object. Those of the others are the agent's to judge. */}}
{{- define "meshcni.flagPatterns" -}}
{{- $bool := "1|t|T|TRUE|true|True|0|f|F|FALSE|false|False" -}}
{{- $duration := "([0-9]+(\\.[0-9]+)?(ns|us|µs|ms|s|m|h))+" -}}
{{- $patterns := dict
      "backend" "auto|iptables|iptables-nft|iptables-legacy|nftables" "agent" "prefer|off|require|false" "preinstall" "off|gate|capture" "nri-plugin-dir" "|/.*" "log-level" "(?i)(debug|info|warn|error)"
      "uncaptured-family" "allow|drop" "repair" "none|label|delete|repair|auto" "kubernetes-service-protocol" "http|https"
      "add-deadline" $duration "ambient-verify-interval" $duration "token-lifetime" $duration "ambient-drain-timeout" (printf "0|%s" $duration)
      "own-file" (printf "auto|%s" $bool) "uninstall-on-exit" (printf "auto|%s" $bool) "exclude-namespace-selector" (include "meshcni.selectorPattern" . | trim | printf "|%s") -}}
{{- if eq .Values.product "meshcni" -}}
{{- $one := "\\s*(istio|linkerd|kuma|consul|ambient)\\s*" -}}
{{- $_ := set $patterns "dialect" (printf "%[1]s(,%[1]s)*" $one) -}}
{{- end -}}
{{- range splitList " " (include "meshcni.boolFlags" .) }}{{ $_ := set $patterns . $bool }}{{ end -}}
{{- range list "cni-bin-dir" "cni-conf-dir" "cni-cache-dir" "run-dir" "bin-source-dir" "service-account-dir" "zds-socket" }}{{ $_ := set $patterns . "/.*" }}{{ end -}}
{{- toYaml $patterns -}}
{{- end -}}

{{/* The flags that need no value. */}}
{{- define "meshcni.boolFlags" -}}
alone chained refuse-proxy-uid refuse-net-raw write-status ready-without-agent detect ambient ready-needs-proxy ambient-dns-capture ambient-ipv6
{{- end -}}

{{/* What is wrong with a flag's value; empty: nothing. Of (list $ FLAG VALUE). A $(NAME) is filled in on the node. */}}
{{- define "meshcni.wrong" -}}
{{- $flag := index . 1 -}}{{- $value := index . 2 | toString -}}
{{- $pattern := get (include "meshcni.flagPatterns" (index . 0) | fromYaml) $flag -}}
{{- if and $pattern (not (contains "$(" $value)) -}}
{{- if not (regexMatch (printf "^(%s)$" $pattern) $value) -}}
no value that the agent takes
{{- else if hasKey (dict "add-deadline" 1 "ambient-verify-interval" 1) $flag -}}
{{- if lt (include "meshcni.milliseconds" $value | float64) 1000.0 }}it must be 1s at least{{ end -}}
{{- else if eq $flag "token-lifetime" -}}
{{- $ms := include "meshcni.milliseconds" $value | float64 -}}
{{- if or (lt $ms 600000.0) (gt $ms 86400000.0) }}it must be between 10m and 24h{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What is wrong with a template of the plugin's entry, a JSON list of texts. Of (list $ NAME TEXT). */}}
{{- define "meshcni.wrongEntry" -}}
{{- $ctx := index . 0 -}}{{- $name := index . 1 -}}
{{- $bad := list -}}
{{- $kubeconfig := printf "%s/kubeconfig" $ctx.Values.cni.runDir -}}
{{- /* A port may be written as a number. */ -}}
{{- $entry := index . 2 | replace "__LOG_LEVEL__" $ctx.Values.logLevel | replace "__KUBECONFIG_FILEPATH__" $kubeconfig | replace "__KUBERNETES_SERVICE_PORT__" "1" | fromJson -}}
{{- if hasKey $entry "Error" }}{{- $bad = append $bad (printf "%s is no JSON object: %s" $name (index $entry "Error")) }}
{{- else if not (and (kindIs "string" (index $entry "type")) (regexMatch "^[A-Za-z0-9_][A-Za-z0-9._-]*$" (index $entry "type" | toString))) }}{{- $bad = append $bad (printf "%s has no \"type\" that is a file's name" $name) }}
{{- else -}}
{{- $k := index $entry "kubernetes" -}}
{{- if not (or (kindIs "map" $k) (kindIs "invalid" $k) (eq (toString $k) "")) }}{{- $bad = append $bad (printf "%s: kubernetes: want an object" $name) }}{{ end -}}
{{- $k = ternary $k dict (kindIs "map" $k) -}}
{{- $values := dict "kubernetes.exclude_namespace_selector" (index $k "exclude_namespace_selector") "kubernetes.kubeconfig" (index $k "kubeconfig") "kubernetes.cni_bin_dir" (index $k "cni_bin_dir") -}}
{{- range list "backend" "agent" "log_level" "add_deadline" "uncaptured_family" "run_dir" "pod_namespace" "name" "cniVersion" }}{{ $_ := set $values . (index $entry .) }}{{ end -}}
{{- range $key, $value := $values -}}
{{- if not (or (kindIs "string" $value) (kindIs "invalid" $value)) }}{{- $bad = append $bad (printf "%s: %s: want a string, not %s" $name $key (toJson $value)) }}
{{- else if and $value (ne $key "run_dir") -}}
{{- with include "meshcni.wrong" (list $ctx (trimPrefix "kubernetes." $key | replace "_" "-") $value) }}{{- $bad = append $bad (printf "%s: %s %q: %s" $name $key $value .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- range list "refuse_proxy_uid" "refuse_net_raw" "write_status" "ready_without_agent" -}}
{{- $value := index $entry . -}}
{{- if and (hasKey $entry .) (not (or (kindIs "bool" $value) (kindIs "invalid" $value))) }}{{- $bad = append $bad (printf "%s: %s: want true or false, not %s" $name . (toJson $value)) }}{{ end -}}
{{- end -}}
{{- range $key, $value := dict "dialect" (index $entry "dialect") "kubernetes.exclude_namespaces" (index $k "exclude_namespaces") -}}
{{- $isDialect := eq $key "dialect" -}}
{{- if and $isDialect (kindIs "string" $value) }}{{ $value = ternary (list $value) nil (ne $value "") }}{{ end -}}
{{- if kindIs "slice" $value -}}
{{- if and $isDialect (or (not $value) (ne (len $value) (uniq $value | len))) }}{{- $bad = append $bad (printf "%s: dialect: no list of different names" $name) }}{{ end -}}
{{- range $value -}}
{{- if not (kindIs "string" .) }}{{- $bad = append $bad (printf "%s: %s: want strings, not %s" $name $key (toJson .)) }}
{{- else if and $isDialect (or (contains "," .) (ne (trim .) .) (include "meshcni.wrong" (list $ctx "dialect" .))) }}{{- $bad = append $bad (printf "%s: dialect %q is not known" $name .) }}
{{- else if and $isDialect (eq . "ambient") (eq $ctx.Values.product "meshcni") (not $ctx.Values.ambient.enabled) }}{{- $bad = append $bad (printf "%s: dialect ambient needs ambient.enabled" $name) }}{{ end -}}
{{- end -}}
{{- else if not (kindIs "invalid" $value) }}{{- $bad = append $bad (printf "%s: %s: want %sa list of strings, not %s" $name $key (ternary "a string or " "" $isDialect) (toJson $value)) }}{{ end -}}
{{- end -}}
{{- $agent := index $entry "agent" | toString -}}
{{- if and $ctx.Values.ambient.enabled (has $agent (list "off" "false")) }}{{- $bad = append $bad (printf "%s: agent off does not go with ambient.enabled" $name) }}{{ end -}}
{{- $path := index $k "kubeconfig" | default (printf "/var/run/%s/kubeconfig" (include "meshcni.type" $ctx)) -}}
{{- if and (kindIs "string" $path) (ne (clean $path) $kubeconfig) (ne $agent "require") }}{{- $bad = append $bad (printf "%s: kubernetes.kubeconfig %q: the agent writes %q; say __KUBECONFIG_FILEPATH__" $name $path $kubeconfig) }}{{ end -}}
{{- end -}}
{{- toJson $bad -}}
{{- end -}}

{{/* What is wrong with extraArgs and extraEnv, a JSON list of texts. */}}
{{- define "meshcni.wrongExtras" -}}
{{- $bad := list -}}
{{- $flags := include "meshcni.flags" . | splitList " " -}}
{{- $alone := concat (include "meshcni.boolFlags" . | splitList " ") (list "own-file" "uninstall-on-exit") -}}
{{- range $arg := .Values.extraArgs -}}
{{- $flag := regexFind "^--[^=]*" $arg | trimPrefix "--" -}}
{{- if not (has $flag $flags) }}{{- $bad = append $bad (printf "extraArgs %q: %s run has no such flag" $arg (include "meshcni.agent" $)) }}
{{- else if contains "=" $arg -}}
{{- with include "meshcni.wrong" (list $ $flag (trimPrefix (printf "--%s=" $flag) $arg)) }}{{- $bad = append $bad (printf "extraArgs %q: %s" $arg .) }}{{ end -}}
{{- else if not (has $flag $alone) }}{{- $bad = append $bad (printf "extraArgs %q: it needs a value: %s=…" $arg $arg) }}{{ end -}}
{{- end -}}
{{- $prefix := include "meshcni.envPrefix" . -}}
{{- range $var := .Values.extraEnv -}}
{{- $value := get $var "value" | toString -}}
{{- if not (and (hasKey $var "value") $value) -}}
{{- else if eq $var.name "CNI_NETWORK_CONFIG" }}{{- $bad = concat $bad (include "meshcni.wrongEntry" (list $ "extraEnv CNI_NETWORK_CONFIG" $value) | fromJsonArray) }}
{{- else if hasPrefix $prefix $var.name -}}
{{- with include "meshcni.wrong" (list $ (trimPrefix $prefix $var.name | lower | replace "_" "-") $value) }}{{- $bad = append $bad (printf "extraEnv %s %q: %s" $var.name $value .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toJson $bad -}}
{{- end -}}
