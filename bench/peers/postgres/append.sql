SELECT append(:client_id % :categories, :client_id, :version, 'appended', :data) AS version \gset
