{{- define "pod" -}}
{{- $values := .root.Values }}
{{- $keys := eq .set.component "keys" -}}
serviceAccountName: {{ .set.name }}
automountServiceAccountToken: false
enableServiceLinks: false # a Service named commands would set COMMANDS_PORT
{{- range $place := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $values $place }}
{{ $place }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
# The relayer stops within 10 s; the rest is for a slow Kubernetes node.
terminationGracePeriodSeconds: 30
{{- with $values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  {{- if $keys }}
  fsGroup: 65532 # may read the files with keys, which nobody else may
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "selector" .root | nindent 8 }}
containers:
  - name: relayer
    image: "{{ $values.image.repository }}{{ with $values.image.digest }}@{{ . }}{{ else }}:{{ $values.image.tag | default .root.Chart.AppVersion }}{{ end }}"
    args: [run]
    ports:
      - {name: http, containerPort: 8080}
      {{- if $keys }}
      - {name: commands, containerPort: 8081}
      {{- end }}
    envFrom:
      - secretRef: {name: {{ $values.secret }}}
    env:
      - {name: CONFIG_FILE, value: /etc/escrow-relayer/chains.yaml}
      - {name: LOG_FORMAT, value: {{ $values.env.LOG_FORMAT | default "json" }}}
      - {name: TOTAL_PARTITIONS, value: {{ $values.partitions | quote }}}
      - name: INSTANCE_ID
        valueFrom: {fieldRef: {fieldPath: metadata.name}}
      - name: PARTITION_NUMBER
        {{- if eq $values.kind "StatefulSet" }}
        valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
        {{- else }}
        value: auto
        {{- end }}
      {{- range $name, $value := omit $values.env "LOG_FORMAT" }}
      - {name: {{ $name }}, value: {{ $value | quote }}}
      {{- end }}
      {{- if $keys }}
      - name: DATABASE_URL # over the one of the secret above: the login of these pods may sign
        valueFrom: {secretKeyRef: {name: {{ $values.keys.databaseSecret }}, key: DATABASE_URL}}
      - {name: SENDERS_FILE, value: /etc/escrow-relayer/keys/senders.json}
      - {name: COMMANDS_POLICY_FILE, value: /etc/escrow-relayer/keys/policy.json}
      - {name: COMMANDS_HTTP, value: "true"}
      - {name: COMMANDS_PORT, value: "8081"}
      {{- range $name, $value := $values.keys.env }}
      - {name: {{ $name }}, value: {{ $value | quote }}}
      {{- end }}
      {{- end }}
      {{- with $values.extraEnv }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    volumeMounts:
      - {name: chains, mountPath: /etc/escrow-relayer/chains.yaml, subPath: chains.yaml, readOnly: true}
      {{- if $keys }}
      - {name: keys, mountPath: /etc/escrow-relayer/keys, readOnly: true}
      {{- end }}
      {{- with $values.extraVolumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    resources: {{- toYaml $values.resources | nindent 6 }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    # Startup and liveness ask whether the process runs, and nothing else: a restart mends neither the database nor a
    # node.
    startupProbe:
      httpGet: {path: /healthz, port: http}
      periodSeconds: 2
      failureThreshold: 30
    livenessProbe:
      httpGet: {path: /healthz, port: http}
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: 6
    # Readiness holds a rollout back until the new pod has its session, the database and a node.
    readinessProbe:
      httpGet: {path: /readyz, port: http}
      periodSeconds: 5
      timeoutSeconds: 3
      failureThreshold: 2
volumes:
  - name: chains
    configMap: {name: {{ .root.Release.Name }}}
  {{- if $keys }}
  - name: keys
    secret: {secretName: {{ $values.keys.secret }}, defaultMode: 0440}
  {{- end }}
  {{- with $values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
